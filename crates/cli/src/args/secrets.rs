//! Removes secrets from usage errors. clap repeats the word that it does not understand, which may be an
//! address with a password, or a token, in the wrong place. Only words that cannot be a secret are repeated.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, Error, ErrorKind};

/// The replacement of a word that is not repeated.
const REDACTED: &str = "(not shown)";

/// Returns the word if it looks like an option, a subcommand, a time or a shell, else a replacement.
/// Addresses and tokens are longer, or have other characters.
pub fn redact_word(word: &str) -> &str {
    let is_plain = word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if is_plain && word.len() <= 20 { word } else { REDACTED }
}

/// Returns the error without words that may be secret.
pub fn redact(mut error: Error) -> Error {
    // In errors of other kinds, InvalidArg is the form of an argument, such as `--ttl <TIME>`.
    let unknown = (error.kind() == ErrorKind::UnknownArgument).then_some(ContextKind::InvalidArg);
    for word in [ContextKind::InvalidSubcommand, ContextKind::InvalidValue].into_iter().chain(unknown) {
        if matches!(error.get(word), Some(ContextValue::String(text)) if redact_word(text) != text) {
            error.insert(word, ContextValue::String(REDACTED.into()));
            // The suggestion ("to pass '...' as a value") repeats the word.
            error.remove(ContextKind::Suggested);
        }
    }
    error
}

/// Adds a tip if the cause of the error may be a command without `--` before it.
pub fn add_tip(mut error: Error, words: &[OsString]) -> Error {
    let runs = words.get(1).is_some_and(|word| word == "run" || word == "elect");
    let kinds = [ErrorKind::MissingRequiredArgument, ErrorKind::UnknownArgument];
    if runs && kinds.contains(&error.kind()) && !words.iter().any(|word| word == "--") {
        let tip = "the command comes after --, as in `dlock run RESOURCE -- COMMAND`";
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// The message for an invalid time.
pub fn time_error(why: humantime::DurationError) -> String {
    let why = match why {
        // humantime's message repeats the unit, which may be any word.
        humantime::DurationError::UnknownUnit { .. } => "unknown time unit".to_string(),
        why => why.to_string(),
    };
    format!("{why}; times are written 30s, 500ms, 2m")
}
