//! What may be installed: specs, rules and locks of Python packages, parsed and written again by us.
//!
//! Everything here is pure. Text from a client or from the resolver becomes one of these types or is
//! refused; only what these types write reaches another program.

pub use environment_name::{BadEnvironmentName, EnvironmentName};
pub use lock::{Lock, LockError, LockSources, LockedPackage, MAX_LOCK_BYTES, Wheel};
pub use name::{BadName, Extra, PackageName};
pub use python_version::{BadPythonVersion, PythonVersion};
pub use requirement::{Operator, Requirement, RequirementError, Specifier};
pub use rules::{Rules, RulesError, Verdict};
pub use templates::{Template, Templates};
pub use version::{Phase, Version, VersionError};

mod environment_name;
mod lock;
mod malicious;
mod name;
mod python_version;
mod requirement;
mod rules;
mod templates;
mod version;
mod wheel_name;
