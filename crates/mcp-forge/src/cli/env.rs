//! `mcp-forge env`: environments, the packages in them, and what waits for an approval.

use std::{
    fmt::Write as _,
    io::{self, IsTerminal, Write},
    sync::Arc,
    time::Duration,
};

use clap::Subcommand;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use crate::{
    config::Config,
    environments::{Built, EnvironmentView, EnvironmentsError, Listed, Phase, Teller},
    names::Principal,
    service::{BuildEnvironmentRequest, Service, ServiceError},
    store::Approval,
    text::printable,
};

use super::{
    CliError, Exit, Signals, end, service,
    terminal::{Screen, one_line, print_json},
};

/// Packages of an environment that a list names; `show` has all.
const SHOWN_PACKAGES: usize = 6;

/// Build, list, show, rebuild and delete environments; approve packages
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
An environment is a set of packages that code can import. It is built once, from wheels, under the rules of the \
configuration (docs/environments.md), and found again by its name; uv must be installed.

Examples:
  mcp-forge env build plots numpy 'pandas>=2' matplotlib
  mcp-forge run --env plots -c 'import pandas; pandas.__version__'
  mcp-forge env build ml --template ml-basic --with xgboost
  mcp-forge env list
  What somebody asked for and may not have yet:
      mcp-forge env approvals
      mcp-forge env approve paramiko")]
pub(super) struct EnvArguments {
    #[command(subcommand)]
    command: EnvCommand,
}

#[derive(Debug, Subcommand)]
enum EnvCommand {
    Build(BuildArguments),
    /// List the environments and the templates
    List(Printed),
    /// Show one environment, with all of its packages
    Show(One),
    /// Build an environment anew, with the newest versions that it asks for
    Rebuild(One),
    /// Forget an environment; its files go once nothing uses them
    Delete(One),
    /// List the packages that were approved, or wait for it
    Approvals(Printed),
    /// Let packages in that `packages.manual_approval` holds back
    Approve(Packages),
    /// Take approvals back; what was built with them stays
    Revoke(Packages),
}

/// Build an environment
#[derive(Debug, clap::Args)]
struct BuildArguments {
    /// What to call it: lower-case letters, digits and hyphens
    name: String,
    /// Packages as PEP 508 requirements, for example 'numpy>=2'
    packages: Vec<String>,
    /// Begin with a template; `env list` has them
    #[arg(long, value_name = "NAME")]
    template: Option<String>,
    /// A package beside the template's; may be given several times
    #[arg(long = "with", value_name = "PACKAGE", requires = "template")]
    additional: Vec<String>,
    /// Python's version, for example 3.12 [default: that of the default environment]
    #[arg(long, value_name = "VERSION")]
    python: Option<String>,
    /// What it is for
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// Approve what the rules hold back: you are the operator
    #[arg(long)]
    approve: bool,
    #[command(flatten)]
    printed: Printed,
}

#[derive(Debug, clap::Args)]
struct Printed {
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct One {
    /// The environment's name
    name: String,
    #[command(flatten)]
    printed: Printed,
}

#[derive(Debug, clap::Args)]
struct Packages {
    /// Their names
    #[arg(required = true)]
    names: Vec<String>,
}

pub(super) async fn run(
    arguments: EnvArguments,
    config: Config,
    screen: Screen,
) -> Result<Exit, CliError> {
    let service = service(config)?;
    let mut signals = Signals::watch()?;
    let done = tokio::select! {
        done = act(&service, arguments.command, screen) => done.map(|()| Exit::Success),
        // Dropping a build removes what it wrote.
        exit = signals.next() => Ok(exit),
    };
    end(&service).await;
    done
}

async fn act(service: &Arc<Service>, command: EnvCommand, screen: Screen) -> Result<(), CliError> {
    let me = Principal::local();
    match command {
        EnvCommand::Build(arguments) => build(service, arguments).await,
        EnvCommand::List(printed) => {
            let listed = service.list_environments(&me).await?;
            show(printed.json, &listed, || list_text(&listed, screen))
        }
        EnvCommand::Show(one) => {
            let view = service.environment_view(&me, &one.name).await?;
            show(one.printed.json, &view, || view_text(&view, screen))
        }
        EnvCommand::Rebuild(one) => {
            let (teller, bar) = bar();
            let built = service.rebuild_environment(&me, &one.name, &teller).await;
            drop(teller);
            bar.await.ok();
            let built = built?;
            show(one.printed.json, &built, || built_text(&built))
        }
        EnvCommand::Delete(one) => {
            let deleted = service.delete_environment(&me, &one.name).await?;
            let text = || format!("Environment {} is gone.\n", deleted.name);
            show(one.printed.json, &deleted, text)
        }
        EnvCommand::Approvals(printed) => {
            let approvals = service.approvals().await?;
            let rows: Vec<_> = approvals.iter().map(approval_row).collect();
            show(printed.json, &json!({"approvals": rows}), || {
                approvals_text(&approvals)
            })
        }
        EnvCommand::Approve(packages) => {
            service
                .approve_packages(&packages.names, me.as_str())
                .await?;
            let text = format!("Approved: {}\n", packages.names.join(", "));
            Ok(print(&text)?)
        }
        EnvCommand::Revoke(packages) => {
            for name in &packages.names {
                let had = service.revoke_approval(name, me.as_str()).await?;
                let what = if had {
                    "is revoked"
                } else {
                    "was not approved"
                };
                print(&format!("{} {what}\n", printable(name)))?;
            }
            Ok(())
        }
    }
}

async fn build(service: &Arc<Service>, arguments: BuildArguments) -> Result<(), CliError> {
    let me = Principal::local();
    let request = BuildEnvironmentRequest {
        name: arguments.name,
        packages: Some(arguments.packages),
        template: arguments.template,
        additional_packages: Some(arguments.additional).filter(|more| !more.is_empty()),
        python_version: arguments.python,
        base_image: None,
        description: arguments.description,
    };
    let (teller, bar) = bar();
    let mut built = service
        .build_environment(&me, request.clone(), &teller)
        .await;
    // Dependencies come to light one after the other.
    while let Some(waiting) = waiting(&built).filter(|_| arguments.approve) {
        service.approve_packages(&waiting, me.as_str()).await?;
        built = service
            .build_environment(&me, request.clone(), &teller)
            .await;
    }
    drop(teller);
    bar.await.ok();
    let built = built?;
    show(arguments.printed.json, &built, || built_text(&built))
}

/// The packages that a build waits for.
fn waiting(built: &Result<Built, ServiceError>) -> Option<Vec<String>> {
    match built {
        Err(ServiceError::Environments(error)) => match &**error {
            EnvironmentsError::NeedsApproval(refusals) => Some(
                refusals
                    .iter()
                    .map(|refusal| refusal.package.clone())
                    .collect(),
            ),
            _ => None,
        },
        _ => None,
    }
}

/// A bar on a terminal, one line a phase elsewhere; it ends with the teller.
fn bar() -> (Teller, tokio::task::JoinHandle<()>) {
    let (teller, mut told) = Teller::new();
    let is_terminal = io::stderr().is_terminal();
    let drawn = tokio::spawn(async move {
        let bar = ProgressBar::no_length();
        bar.set_style(spinner());
        bar.enable_steady_tick(Duration::from_millis(120));
        let mut phase = Phase::Waiting;
        while told.changed().await.is_ok() {
            let progress = told.borrow_and_update().clone();
            if !is_terminal {
                if progress.phase != phase {
                    // Standard error may be closed: the build goes on.
                    let _ = writeln!(io::stderr(), "{}", progress.phase.name());
                }
                phase = progress.phase;
                continue;
            }
            if progress.phase == Phase::Downloading && progress.total_bytes > 0 {
                bar.set_style(bytes());
                bar.set_length(progress.total_bytes);
                bar.set_position(progress.fetched_bytes.min(progress.total_bytes));
                bar.set_message(one_line(&progress.detail));
            } else {
                bar.set_style(spinner());
                bar.set_message(one_line(&progress.to_string()));
            }
        }
        bar.finish_and_clear();
    });
    (teller, drawn)
}

fn spinner() -> ProgressStyle {
    ProgressStyle::with_template("{spinner:.cyan} {msg} {elapsed:.dim}")
        .unwrap_or_else(|_| ProgressStyle::default_spinner())
}

fn bytes() -> ProgressStyle {
    ProgressStyle::with_template("downloading {bar:30.cyan} {bytes} of {total_bytes}  {msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn show(
    as_json: bool,
    value: &impl serde::Serialize,
    text: impl FnOnce() -> String,
) -> Result<(), CliError> {
    if as_json {
        return Ok(print_json(value)?);
    }
    Ok(print(&text())?)
}

fn print(text: &str) -> io::Result<()> {
    io::stdout().lock().write_all(text.as_bytes())
}

fn built_text(built: &Built) -> String {
    let mut text = format!(
        "{}: {} packages, {} MB, Python {}, {:.1} s{}\n",
        built.name,
        built.installed_packages.len(),
        built.size_mb,
        built.python_version,
        built.build_time,
        if built.cache_hit {
            ", was there already"
        } else {
            ""
        },
    );
    for package in &built.installed_packages {
        let _ = writeln!(text, "  {package}");
    }
    let scan = &built.scan;
    if scan.scanned {
        let _ = writeln!(
            text,
            "{}: {} critical, {} high, {} other known vulnerabilities",
            scan.by, scan.critical, scan.high, scan.other
        );
    }
    for warning in &built.warnings {
        let _ = writeln!(text, "warning: {}", printable(warning));
    }
    let _ = writeln!(text, "Try it: mcp-forge run --env {} -c '...'", built.name);
    text
}

fn list_text(listed: &Listed, screen: Screen) -> String {
    let mut text = String::new();
    if listed.custom.is_empty() {
        text.push_str(
            "There are no environments: mcp-forge env build NAME PACKAGE... makes one.\n",
        );
    }
    for view in &listed.custom {
        let more = view.packages.len().saturating_sub(SHOWN_PACKAGES);
        let mut packages = view
            .packages
            .iter()
            .take(SHOWN_PACKAGES)
            .cloned()
            .collect::<Vec<_>>()
            .join(", ");
        if more > 0 {
            let _ = write!(packages, " and {more} more");
        }
        let _ = writeln!(
            text,
            "{}  {}, Python {}, {} MB, last used {}\n    {packages}",
            screen.bold(&view.name),
            view.state,
            view.python_version,
            view.size_mb,
            view.last_used
        );
        for note in view
            .notice
            .iter()
            .map(String::as_str)
            .chain([view.description.as_str()])
        {
            if !note.is_empty() {
                let _ = writeln!(text, "    {}", one_line(note));
            }
        }
    }
    let _ = writeln!(text, "\n{}", screen.bold("Templates"));
    for template in &listed.templates {
        let state = if template.built {
            "built"
        } else {
            "built at first use"
        };
        let _ = writeln!(
            text,
            "  {}  {} ({state})\n    {}",
            screen.bold(&template.name),
            one_line(&template.description),
            template.packages.join(", ")
        );
    }
    text
}

fn view_text(view: &EnvironmentView, screen: Screen) -> String {
    let mut text = format!(
        "{}: {}, Python {}, {} MB\n",
        screen.bold(&view.name),
        view.state,
        view.python_version,
        view.size_mb
    );
    let template = view.template.as_deref().unwrap_or("none");
    for (what, value) in [
        ("description", one_line(&view.description)),
        ("template", template.to_owned()),
        ("asked for", view.requested.join(", ")),
        ("lock", view.lock_hash.clone()),
        ("created", view.created_at.clone()),
        ("built", view.built_at.clone()),
        ("last used", view.last_used.clone()),
        ("deleted", format!("{} if nobody uses it", view.deleted_on)),
    ] {
        let _ = writeln!(text, "  {what:12} {value}");
    }
    for package in &view.packages {
        let _ = writeln!(text, "  {package}");
    }
    text
}

fn approval_row(approval: &Approval) -> serde_json::Value {
    json!({
        "package": approval.package,
        "pattern": approval.pattern,
        "asked_by": approval.principal,
        "environment": approval.environment,
        "approved": approval.approved_ms.is_some(),
        "approved_by": approval.approved_by,
    })
}

fn approvals_text(approvals: &[Approval]) -> String {
    if approvals.is_empty() {
        return "Nothing waits for an approval, and nothing was approved.\n".to_owned();
    }
    let mut text = String::new();
    for approval in approvals {
        let state = match &approval.approved_by {
            Some(by) => format!("approved by {}", printable(by)),
            None => format!(
                "waits: {} asked for it, for environment {} ({})",
                printable(&approval.principal),
                approval.environment,
                printable(&approval.pattern)
            ),
        };
        let _ = writeln!(text, "{}  {state}", approval.package);
    }
    text
}
