//! Usage errors without secrets. clap repeats the word that it does not understand; here only words that
//! cannot be a secret are repeated. Addresses contain passwords, a token grants access to a hold, and both
//! may end up in the wrong argument.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, Error, ErrorKind};

/// Replaces a word that is not repeated.
const UNSHOWN: &str = "(not shown)";

/// The word, if it looks like an option, subcommand, time or shell: addresses and tokens are longer, or have
/// other characters.
pub fn shown(word: &str) -> &str {
    let is_plain = word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if is_plain && word.len() <= 20 { word } else { UNSHOWN }
}

/// The error without words that may be secret.
pub fn redact(mut error: Error) -> Error {
    // In other errors this is the form of an argument, `--ttl <TIME>`, from clap itself.
    let unknown = (error.kind() == ErrorKind::UnknownArgument).then_some(ContextKind::InvalidArg);
    for word in [ContextKind::InvalidSubcommand, ContextKind::InvalidValue].into_iter().chain(unknown) {
        if matches!(error.get(word), Some(ContextValue::String(text)) if shown(text) != text) {
            error.insert(word, ContextValue::String(UNSHOWN.into()));
            // "to pass '...' as a value"
            error.remove(ContextKind::Suggested);
        }
    }
    error
}

/// With a tip, if what is wrong can be that the command does not follow `--`.
pub fn explain(mut error: Error, words: &[OsString]) -> Error {
    let runs = words.get(1).is_some_and(|word| word == "run" || word == "elect");
    let kinds = [ErrorKind::MissingRequiredArgument, ErrorKind::UnknownArgument];
    if runs && kinds.contains(&error.kind()) && !words.iter().any(|word| word == "--") {
        let tip = "the command comes after --, as in `dlock run RESOURCE -- COMMAND`";
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// Why a time is invalid.
pub fn time(why: humantime::DurationError) -> String {
    let why = match why {
        // Its own message repeats the unit.
        humantime::DurationError::UnknownUnit { .. } => "unknown time unit".to_string(),
        why => why.to_string(),
    };
    format!("{why}; times are written 30s, 500ms, 2m")
}
