//! What may be asked of a container service: an allow-list, one row a parameter.
//!
//! The service does whatever its socket is told, as the user that it runs as. So every request to
//! create a container is held against these tables before it is sent, and what the service made of it
//! is held against them once more before it is started. Pure: nothing here talks to anybody.

use serde_json::Value;

mod table;

use table::{CREATE, CREATED, Created, Rule};

/// Something that may not be asked for. Nothing was done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message} (rule {rule})")]
pub struct Violation {
    /// The rule's name, as the audit log has it.
    pub rule: &'static str,
    /// One sentence: what was asked, and what is allowed.
    pub message: String,
}

/// What may be done with containers and images. What is not here has no code that does it: no
/// `exec`, no volumes or networks, no pruning, no copying of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Create a container; its parameters are checked by [`ContainerPolicy::create`].
    Create,
    /// Start one.
    Start,
    /// Connect to its streams.
    Attach,
    /// Look at one.
    Inspect,
    /// Remove one, killing it.
    Remove,
}

impl Operation {
    /// The name in the audit log.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Create => "container.create",
            Self::Start => "container.start",
            Self::Attach => "container.attach",
            Self::Inspect => "container.inspect",
            Self::Remove => "container.remove",
        }
    }
}

/// The allow-list, with the operator's images.
#[derive(Debug, Clone)]
pub struct ContainerPolicy {
    images: Vec<String>,
}

/// An image that the operator allows, as the service knows it: its name could be given to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// As the operator writes it.
    pub name: String,
    /// What it is: the hash of its configuration.
    pub id: String,
}

impl ContainerPolicy {
    /// `images`: names, or beginnings of names with `*` at their end.
    pub const fn new(images: Vec<String>) -> Self {
        Self { images }
    }

    /// Whether an image of this name may be used, pulled or built.
    ///
    /// # Errors
    ///
    /// [`Violation`].
    pub fn image(&self, name: &str) -> Result<(), Violation> {
        let is_name = !name.is_empty()
            && name.len() <= 255
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_./:@".contains(&byte));
        let matches = |pattern: &String| match pattern.strip_suffix('*') {
            // A star is for a tag or a name, not for another registry or directory.
            Some(start) => name
                .strip_prefix(start)
                .is_some_and(|rest| !rest.is_empty() && !rest.contains('/')),
            None => name == pattern,
        };
        if is_name && self.images.iter().any(matches) {
            return Ok(());
        }
        let shown: String = name.chars().take(100).collect();
        Err(Violation {
            rule: "image.not_allowed",
            message: format!(
                "the image `{shown}` is not allowed: images.allowed has {}",
                self.images.join(", ")
            ),
        })
    }

    /// Whether this may be done with a container that is, or is not, one of ours.
    ///
    /// # Errors
    ///
    /// [`Violation`].
    pub fn operation(&self, operation: Operation, is_own: bool) -> Result<(), Violation> {
        if operation == Operation::Create || is_own {
            return Ok(());
        }
        Err(Violation {
            rule: "container.not_own",
            message: format!(
                "{} is for containers that this server created",
                operation.name()
            ),
        })
    }

    /// Whether a container may be created so. `body` is what would be sent, whole.
    ///
    /// # Errors
    ///
    /// [`Violation`]: the first parameter that is forbidden, missing, or not as it must be.
    pub fn create(&self, image: &Image, body: &Value) -> Result<(), Violation> {
        self.image(&image.name)?;
        let given = parameters(body)?;
        for (path, value) in &given {
            let rule = CREATE.iter().find(|(name, _)| name == path);
            let Some((_, rule)) = rule else {
                return Err(forbidden(path));
            };
            if !rule.allows(value) {
                return Err(wrong(path, value, *rule));
            }
        }
        for (path, rule) in CREATE {
            if Rule::is_required(path) && !given.iter().any(|(given, _)| given == path) {
                return Err(Violation {
                    rule: "parameter.required",
                    message: format!("`{path}` must be {}", rule.described()),
                });
            }
        }
        match body.get("Image").and_then(Value::as_str) {
            Some(id) if id == image.id => Ok(()),
            _ => Err(Violation {
                rule: "image.not_pinned",
                message: format!("`Image` must be the id of {}, not a name", image.name),
            }),
        }
    }

    /// Whether the container that the service made is the one that was asked for. An image's own
    /// settings, or the service's, may have changed it.
    ///
    /// # Errors
    ///
    /// [`Violation`]: the container is to be removed unstarted.
    pub fn created(&self, asked: &Value, inspected: &Value) -> Result<(), Violation> {
        for (path, expected) in CREATED {
            let made = lookup(inspected, path);
            let holds = match expected {
                Created::AsAsked => same(lookup(asked, asked_path(path)), made),
                Created::AsAskedOrIgnored => {
                    is_nothing(made) || lookup(asked, asked_path(path)) == made
                }
                Created::OneOf(values) => {
                    values.contains(&made.and_then(Value::as_str).unwrap_or_default())
                }
                Created::Nothing => is_nothing(made),
                Created::Includes => includes(lookup(asked, asked_path(path)), made),
            };
            if !holds {
                return Err(Violation {
                    rule: "container.not_as_asked",
                    message: format!(
                        "the container service made `{path}` {}, which was not asked for",
                        shown(made.unwrap_or(&Value::Null))
                    ),
                });
            }
        }
        Ok(())
    }
}

/// Each parameter with its path: those of `HostConfig` are named one by one.
fn parameters(body: &Value) -> Result<Vec<(String, &Value)>, Violation> {
    let host = body.get("HostConfig").and_then(Value::as_object);
    let (Some(top), Some(host)) = (body.as_object(), host) else {
        return Err(Violation {
            rule: "parameter.required",
            message: "`HostConfig` must be there".to_owned(),
        });
    };
    let top = top.iter().filter(|(name, _)| *name != "HostConfig");
    let top = top.map(|(name, value)| (name.clone(), value));
    let host = host
        .iter()
        .map(|(name, value)| (format!("HostConfig.{name}"), value));
    Ok(top
        .chain(host)
        .filter(|(_, value)| !value.is_null())
        .collect())
}

fn forbidden(path: &str) -> Violation {
    Violation {
        rule: "parameter.forbidden",
        message: format!("`{path}` may not be given"),
    }
}

fn wrong(path: &str, value: &Value, rule: Rule) -> Violation {
    Violation {
        rule: "parameter.value",
        message: format!(
            "`{path}` is {}, and must be {}",
            shown(value),
            rule.described()
        ),
    }
}

/// A value for people, bounded.
fn shown(value: &Value) -> String {
    value.to_string().chars().take(200).collect()
}

/// Where a response has what a request put elsewhere.
fn asked_path(path: &str) -> &str {
    path.strip_prefix("Config.").unwrap_or(path)
}

fn lookup<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.')
        .try_fold(value, |value, part| value.get(part))
}

/// Whether two values say the same: services leave out what is empty.
fn same(asked: Option<&Value>, made: Option<&Value>) -> bool {
    (is_nothing(asked) && is_nothing(made)) || asked == made
}

fn is_nothing(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null | Value::Bool(false)) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(Value::Object(members)) => members.is_empty(),
        Some(Value::Number(number)) => number.as_f64() == Some(0.0),
        Some(Value::Bool(true)) => false,
    }
}

/// Whether everything that was asked for is there, beside what the service adds of its own.
fn includes(asked: Option<&Value>, made: Option<&Value>) -> bool {
    match (asked, made) {
        (Some(Value::Object(asked)), Some(Value::Object(made))) => asked
            .iter()
            .all(|(name, value)| made.get(name) == Some(value)),
        (Some(Value::Array(asked)), Some(Value::Array(made))) => {
            asked.iter().all(|item| made.contains(item))
        }
        _ => is_nothing(asked),
    }
}

#[cfg(test)]
mod tests;
