//! Foreign text, made fit to show to people: bounded, and unable to steer a terminal.

/// Characters of a foreign text that one sentence repeats.
const MAX_CLIPPED_CHARS: usize = 60;

/// Foreign text on one terminal: line breaks and tabs stay; whatever else could move the cursor,
/// change the title, or turn the direction of writing is shown as its escape.
pub(crate) fn printable(text: &str) -> String {
    let is_unsafe = |letter: char| {
        (letter.is_control() && letter != '\n' && letter != '\t')
            || matches!(letter, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}')
    };
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        if is_unsafe(letter) {
            out.extend(letter.escape_unicode());
        } else {
            out.push(letter);
        }
    }
    out
}

/// Foreign text in a sentence: short, and escaped.
pub(crate) fn clipped(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.by_ref().take(MAX_CLIPPED_CHARS);
    let mut short: String = first.flat_map(char::escape_debug).collect();
    if letters.next().is_some() {
        short.push('…');
    }
    short
}

/// As [`clipped`], in quotes.
pub(crate) fn quoted(text: &str) -> String {
    format!("\"{}\"", clipped(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_cannot_steer_the_terminal() {
        assert_eq!(
            printable("a\u{1b}[31mb\r\n\tc\u{7f}\u{9b}"),
            "a\\u{1b}[31mb\\u{d}\n\tc\\u{7f}\\u{9b}"
        );
        assert_eq!(printable("x\u{202e}y"), "x\\u{202e}y");
        assert_eq!(printable("Grüße 🎉 日本"), "Grüße 🎉 日本");
    }

    #[test]
    fn a_sentence_repeats_only_the_beginning_of_a_long_text() {
        assert_eq!(quoted("a\"b\n"), r#""a\"b\n""#);
        let long = clipped(&"é".repeat(1000));
        assert_eq!(long.chars().count(), MAX_CLIPPED_CHARS + 1);
        assert!(long.ends_with('…'));
    }
}
