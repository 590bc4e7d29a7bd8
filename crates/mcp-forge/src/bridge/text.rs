//! Text from an upstream, made fit to show: invisible characters out, length bounded, secrets removed.

use std::{collections::BTreeMap, fmt};

use crate::config::Transport;

/// Shorter configured values are not hidden: replacing every `1` in a message helps nobody.
const MIN_SECRET_CHARS: usize = 6;

/// Removes what a reader cannot see (control, bidirectional, zero-width and tag characters,
/// variation selectors) and cuts at `max_chars`. Newlines and tabs stay.
pub(super) fn clean(text: &str, max_chars: usize) -> String {
    let mut cleaned = String::with_capacity(text.len().min(max_chars));
    let mut kept = 0;
    for character in text.chars() {
        let character = match character {
            '\u{2028}' | '\u{2029}' => '\n',
            hidden if is_hidden(hidden) => continue,
            shown => shown,
        };
        if kept == max_chars {
            cleaned.push('…');
            break;
        }
        cleaned.push(character);
        kept += 1;
    }
    cleaned
}

/// As [`clean`], with every run of white space as one space.
pub(super) fn one_line(text: &str, max_chars: usize) -> String {
    // Cut first, generously: splitting must not walk a text of many megabytes.
    let bounded = clean(text, max_chars.saturating_mul(4));
    let joined = bounded.split_whitespace().collect::<Vec<_>>().join(" ");
    clean(&joined, max_chars)
}

/// Values that must not reach a sandbox, a client or a log.
#[derive(Clone, Default)]
pub(super) struct Secrets(Vec<String>);

impl Secrets {
    /// Header values, configured environment values, and the user and query parts of a URL.
    pub(super) fn of(transport: &Transport) -> Self {
        let mut secrets = Vec::new();
        match transport {
            Transport::Stdio { env, .. } => secrets.extend(env.values().cloned()),
            Transport::Http { url, headers } => {
                collect_header_secrets(headers, &mut secrets);
                collect_url_secrets(url, &mut secrets);
            }
        }
        secrets.retain(|secret| secret.chars().count() >= MIN_SECRET_CHARS);
        // Longest first, so that no replacement leaves the tail of a longer secret.
        secrets.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        secrets.dedup();
        Self(secrets)
    }

    /// The text with each secret replaced.
    pub(super) fn redact(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, secret| {
            if text.contains(secret.as_str()) {
                text.replace(secret.as_str(), "[redacted]")
            } else {
                text
            }
        })
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({})", self.0.len())
    }
}

fn collect_header_secrets(headers: &BTreeMap<String, String>, secrets: &mut Vec<String>) {
    for value in headers.values() {
        secrets.push(value.clone());
        // `Bearer abc`: an upstream may echo the token alone.
        secrets.extend(value.split_whitespace().skip(1).map(str::to_owned));
    }
}

fn collect_url_secrets(url: &str, secrets: &mut Vec<String>) {
    let after_scheme = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = after_scheme
        .split(['/', '?', '#'])
        .next()
        .unwrap_or_default();
    if let Some((user, _)) = authority.rsplit_once('@') {
        secrets.push(user.to_owned());
        secrets.extend(user.split(':').skip(1).map(str::to_owned));
    }
    if let Some((_, query)) = url.split_once('?') {
        secrets.push(query.to_owned());
        secrets.extend(
            query
                .split('&')
                .filter_map(|pair| pair.split_once('='))
                .map(|(_, value)| value.to_owned()),
        );
    }
}

fn is_hidden(character: char) -> bool {
    match character {
        '\n' | '\t' => false,
        _ if character.is_control() => true,
        '\u{00ad}' | '\u{034f}' | '\u{061c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}'
        | '\u{17b5}' => true,
        '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' => true,
        '\u{2060}'..='\u{206f}'
        | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}'
        | '\u{feff}'
        | '\u{ffa0}' => true,
        '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' => true,
        '\u{e0000}'..='\u{e0fff}' => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_characters_are_removed_and_visible_ones_stay() {
        let hidden = "a\u{202e}b\u{200b}c\u{e0041}\u{feff}d\u{0}\u{1b}[31m\u{fe0f}\n\té漢🎉";
        assert_eq!(clean(hidden, 100), "abcd[31m\n\té漢🎉");
    }

    #[test]
    fn a_long_text_is_cut_with_a_mark() {
        assert_eq!(clean("abcdef", 3), "abc…");
        assert_eq!(clean("abc", 3), "abc");
        assert_eq!(one_line("  a \n\n b\tc ", 100), "a b c");
    }

    #[test]
    fn secrets_of_an_http_upstream_are_redacted_and_never_debugged() {
        let secrets = Secrets::of(&Transport::Http {
            url: "https://someone:passw0rd@example.test/mcp?key=querykey1".to_owned(),
            headers: BTreeMap::from([(
                "Authorization".to_owned(),
                "Bearer token-123456".to_owned(),
            )]),
        });
        let echoed = "bad token-123456 for passw0rd with querykey1 (Bearer token-123456)";
        assert_eq!(
            secrets.redact(echoed),
            "bad [redacted] for [redacted] with [redacted] ([redacted])"
        );
        assert_eq!(format!("{secrets:?}").matches("token").count(), 0);
    }
}
