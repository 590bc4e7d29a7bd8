//! What a run found: everything that the report, the plot and the targets are made from.

use serde::{Deserialize, Serialize};

/// One run of the bench.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Results {
    /// When, in UTC.
    pub(crate) date: String,
    /// Which version: `git describe`.
    pub(crate) version: String,
    /// The options that decide how much is run, as they stand on the command line.
    pub(crate) mode: &'static str,
    pub(crate) machine: Machine,
    /// What a reader must know to read the numbers.
    pub(crate) notes: Vec<String>,
    pub(crate) contenders: Vec<ContenderRow>,
    pub(crate) workloads: Vec<WorkloadRow>,
    pub(crate) cells: Vec<Cell>,
    /// Contenders that targets hold against each other.
    pub(crate) pairs: Vec<Pair>,
    pub(crate) loads: Vec<Load>,
    /// Evenly paced runs at half of the rate that 8 clients got.
    pub(crate) half_rate: Option<Load>,
    pub(crate) alive: Option<Alive>,
    pub(crate) stages: Option<Stages>,
    pub(crate) soak: Option<Soak>,
    /// Of the HTTP service.
    pub(crate) handshakes: Option<Handshakes>,
    /// The same of sessions that have imported pandas.
    pub(crate) sessions: Option<Alive>,
    /// Microseconds of a tool call without a sandbox.
    pub(crate) direct_tool_call_us: Option<f64>,
    /// Median, over rounds, of the MCP call's time less the ping's.
    pub(crate) mcp_above_ping_us: Option<f64>,
    /// The same of a request over HTTP, less the service call's.
    pub(crate) http_above_call_us: Option<f64>,
    pub(crate) targets: Vec<Target>,
}

/// Where it ran.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Machine {
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) memory_gib: u64,
    pub(crate) kernel: String,
    /// Load average over a minute before the run: what else the machine was doing.
    pub(crate) load_before: String,
}

/// One contender, and why it is missing, if it is.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ContenderRow {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// Why it takes no part at all.
    pub(crate) unavailable: Option<String>,
}

/// One workload.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct WorkloadRow {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// Contenders without numbers, and why.
    pub(crate) missing: Vec<(&'static str, String)>,
}

/// One contender at one workload.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Cell {
    pub(crate) workload: &'static str,
    pub(crate) contender: &'static str,
    pub(crate) samples: usize,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// How many times as long as the floor `true`, by rounds.
    pub(crate) to_floor: Option<f64>,
    /// How many times as long bubblewrap takes, by rounds.
    pub(crate) bubblewrap_to_this: Option<f64>,
}

/// Two contenders at one workload, by the rounds that both took part in.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Pair {
    pub(crate) workload: &'static str,
    pub(crate) contender: &'static str,
    pub(crate) other: &'static str,
    /// How many times as long the other takes.
    pub(crate) other_takes: f64,
}

/// Many runs at once.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Load {
    pub(crate) contender: &'static str,
    pub(crate) clients: u32,
    pub(crate) seconds: f64,
    pub(crate) per_second: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) failed: u64,
}

/// Many sandboxes or sessions alive.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Alive {
    pub(crate) asked: u64,
    pub(crate) living: u64,
    pub(crate) stopped: Option<String>,
    pub(crate) start_seconds: f64,
    pub(crate) beside_one_p50_us: f64,
    pub(crate) beside_all_p50_us: f64,
    /// Of the machine's available memory.
    pub(crate) memory_kib_each: u64,
    /// Proportional set size of all processes.
    pub(crate) pss_kib_each: u64,
}

/// The server's memory over many turns.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Soak {
    pub(crate) turns: u64,
    pub(crate) failed: u64,
    /// Resident after the first thousand.
    pub(crate) first_kib: u64,
    pub(crate) last_kib: u64,
}

/// The server's memory over many clients that never come back.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Handshakes {
    pub(crate) count: u64,
    /// How many there had been at the first look.
    pub(crate) first: u64,
    /// Resident then, and in the end.
    pub(crate) first_kib: u64,
    pub(crate) last_kib: u64,
}

/// Where the time of a turn goes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Stages {
    /// What, and microseconds in the median.
    pub(crate) stages: Vec<(String, f64)>,
    /// Page faults of the interpreter from its fork until the code runs.
    pub(crate) faults: f64,
}

/// One thing that the project wants to reach.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Target {
    pub(crate) what: &'static str,
    pub(crate) wanted: &'static str,
    /// What was found, or why nothing was.
    pub(crate) measured: String,
    /// Nothing where nothing was measured.
    pub(crate) met: Option<bool>,
}

impl Results {
    pub(crate) fn cell(&self, workload: &str, contender: &str) -> Option<&Cell> {
        self.cells
            .iter()
            .find(|cell| cell.workload == workload && cell.contender == contender)
    }

    /// How many times as long the other contender takes, of the pair that is looked at there.
    pub(crate) fn pair(&self, workload: &str) -> Option<f64> {
        let pair = self.pairs.iter().find(|pair| pair.workload == workload)?;
        Some(pair.other_takes)
    }

    /// Why a contender has no numbers at a workload.
    pub(crate) fn missing(&self, workload: &str, contender: &str) -> Option<&str> {
        let row = self.workloads.iter().find(|row| row.name == workload)?;
        let (_, reason) = row.missing.iter().find(|(name, _)| *name == contender)?;
        Some(reason)
    }

    pub(crate) fn load(&self, contender: &str, clients: u32) -> Option<&Load> {
        self.loads
            .iter()
            .find(|load| load.contender == contender && load.clients == clients)
    }
}
