//! Builds the object that a zygote loads: `src/object.rs` as a shared library without libraries.
#![expect(
    clippy::disallowed_methods,
    reason = "a build script runs the compiler"
)]

use std::{env, error::Error, path::Path, process::Command};

fn main() -> Result<(), Box<dyn Error>> {
    for file in [
        "object.rs",
        "python.rs",
        "fork_calls.rs",
        "seal.rs",
        "raw.rs",
    ] {
        println!("cargo::rerun-if-changed=src/{file}");
    }
    let object = Path::new(&env::var("OUT_DIR")?).join("seal.so");
    let options = [
        ["--crate-name", "mcp_forge_seal"],
        ["--crate-type", "cdylib"],
        ["--edition", "2024"],
        ["-C", "opt-level=3"],
        ["-C", "panic=abort"],
        ["-C", "strip=symbols"],
        ["-C", "link-arg=-nostartfiles"],
    ];
    let status = Command::new(env::var("RUSTC")?)
        .arg("src/object.rs")
        .args(options.concat())
        .args(["--target", &env::var("TARGET")?, "-o"])
        .arg(&object)
        .status()?;
    if status.success() {
        Ok(())
    } else {
        Err("the seal's object could not be built".into())
    }
}
