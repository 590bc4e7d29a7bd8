//! The warm path: interpreters that are prepared once and only fork, and sandboxes made ahead.
//!
//! There is one pool for each *tier*: the bare interpreter, and some with common packages imported.
//! The imports that a turn's code names decide which serves it.

use std::{path::PathBuf, sync::Arc};

use jail::spec::{JailLimits, JailSpec};

use super::render;
use crate::{
    config::Profile,
    engine::{Environment, LaunchError, Purpose, Sandbox, SandboxSpec},
    runner::source,
};

mod guard;
mod pool;
mod zygote;

use pool::Pool;

/// The pools, one a tier. The first is the bare one.
#[derive(Debug)]
pub(super) struct Warm {
    tiers: Vec<Tier>,
    pools: Vec<Arc<Pool>>,
}

/// What all zygotes of the pools have in common.
#[derive(Debug, Clone)]
pub(super) struct Origin {
    /// This program's own binary.
    pub(super) jail: PathBuf,
    pub(super) profile: Profile,
    /// The packages that they see, if not the interpreter's own.
    pub(super) environment: Option<Arc<Environment>>,
}

/// What a zygote has imported.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Tier {
    pub(super) modules: Vec<String>,
    /// For sessions only.
    pub(super) session: bool,
}

impl Tier {
    /// Tiers as the configuration writes them, `numpy+pandas`. The bare one is first, whether it was
    /// named or not.
    pub(super) fn parse_all(written: &[String]) -> Vec<Self> {
        let mut tiers = vec![Self::default()];
        for text in written {
            let names = text.split('+').map(str::trim);
            let modules = names.filter(|name| !name.is_empty() && *name != BARE);
            let tier = Self {
                modules: modules.map(str::to_owned).collect(),
                session: false,
            };
            if !tiers.contains(&tier) {
                tiers.push(tier);
            }
        }
        tiers
    }

    /// The one for sessions: the runner makes their shell ahead.
    pub(super) fn of_sessions() -> Self {
        Self {
            modules: vec![source::SESSION.to_owned()],
            session: true,
        }
    }

    /// What must be installed for it.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.modules.iter().map(String::as_str)
    }
}

/// The name of the tier without imports.
const BARE: &str = "bare";

impl Warm {
    /// How many sandboxes wait for code.
    pub(super) fn ready(&self) -> usize {
        self.pools.iter().map(|pool| pool.ready()).sum()
    }

    /// Pools that are empty, of zygotes that do not run yet. At most `ready` sandboxes wait in each.
    pub(super) fn new(origin: &Origin, zygote: &JailSpec, tiers: Vec<Tier>, ready: usize) -> Self {
        let pools = tiers
            .iter()
            .map(|tier| {
                let spec = render::with_modules(zygote.clone(), &tier.modules);
                Pool::new(origin.clone(), spec, ready)
            })
            .collect();
        Self { tiers, pools }
    }

    /// Gives a sandbox from the tier that fits: one that waits, else a new fork.
    ///
    /// # Errors
    ///
    /// The zygote could not be started or did not fork; the cold path is left.
    pub(super) async fn take(
        &self,
        spec: &SandboxSpec,
        limits: JailLimits,
    ) -> Result<Sandbox, LaunchError> {
        match self.pools.get(choose(&self.tiers, &spec.purpose)) {
            Some(pool) => pool.take(limits, &spec.purpose).await,
            None => Err(LaunchError::Start("there is no tier".to_owned())),
        }
    }

    /// Starts the zygote of the bare tier, and makes what is to wait.
    ///
    /// # Errors
    ///
    /// As [`Self::take`].
    pub(super) async fn prepare(&self) -> Result<(), LaunchError> {
        match self.pools.first() {
            Some(pool) => pool.prepare().await,
            None => Ok(()),
        }
    }
}

/// The tier with most of the modules that are asked for; of equals the one that has least beside.
fn choose(tiers: &[Tier], purpose: &Purpose) -> usize {
    let score = |tier: &Tier| match purpose {
        Purpose::Session => (usize::from(tier.session), usize::MAX - tier.modules.len()),
        Purpose::Turn(_) if tier.session => (0, 0),
        Purpose::Turn(imports) => {
            let wanted = tier.modules.iter().filter(|name| imports.contains(name));
            (wanted.count(), usize::MAX - tier.modules.len())
        }
    };
    let best = tiers.iter().enumerate().max_by_key(|(_, tier)| score(tier));
    best.map_or(0, |(place, _)| place)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiers(written: &[&str]) -> Vec<Tier> {
        let written: Vec<String> = written.iter().map(|&text| text.to_owned()).collect();
        Tier::parse_all(&written)
    }

    fn chosen(imports: &[&str]) -> usize {
        let imports = imports.iter().map(|&name| name.to_owned()).collect();
        let tiers = tiers(&["json+asyncio", "numpy", "numpy+pandas"]);
        choose(&tiers, &Purpose::Turn(imports))
    }

    #[test]
    fn the_smallest_tier_with_most_of_the_imports_is_chosen() {
        assert_eq!(chosen(&[]), 0);
        assert_eq!(chosen(&["math", "decimal"]), 0);
        assert_eq!(chosen(&["json"]), 1);
        assert_eq!(chosen(&["numpy"]), 2);
        assert_eq!(chosen(&["pandas"]), 3);
        assert_eq!(chosen(&["json", "numpy", "pandas"]), 3);
    }

    #[test]
    fn a_session_gets_its_own_tier_and_no_turn_does() {
        let mut tiers = tiers(&["numpy"]);
        assert_eq!(choose(&tiers, &Purpose::Session), 0);
        tiers.push(Tier {
            modules: vec!["IPython".to_owned()],
            session: true,
        });
        assert_eq!(choose(&tiers, &Purpose::Session), 2);
        let turn = Purpose::Turn(vec!["IPython".to_owned()]);
        assert_eq!(choose(&tiers, &turn), 0);
    }

    #[test]
    fn bare_is_always_first_and_no_tier_is_there_twice() {
        let names: Vec<String> = tiers(&["numpy + pandas", "bare", " numpy ", "numpy"])
            .iter()
            .map(|tier| tier.modules.join("+"))
            .collect();
        assert_eq!(names, ["", "numpy+pandas", "numpy"]);
    }
}
