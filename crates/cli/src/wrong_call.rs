//! What is said of a wrong call. clap repeats the word that it does not understand; here only one that cannot
//! be a secret is repeated. Addresses hold passwords, tokens are the right to a hold, and both can stand in
//! the wrong place.

use clap::error::{ContextKind, ContextValue, Error, ErrorKind};

/// In place of a word that is not repeated.
const UNSHOWN: &str = "(not shown)";

/// The word, if it looks as options, subcommands, times and shells do: addresses and tokens are longer, or
/// hold other characters.
pub fn shown(word: &str) -> &str {
    let is_plain = word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if is_plain && word.len() <= 20 { word } else { UNSHOWN }
}

/// The error without the words of the call that had better not be repeated.
pub fn discreet(mut error: Error) -> Error {
    // Elsewhere this is the form of an argument, `--ttl <TIME>`, which clap knows by itself.
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

/// What is wrong with a time.
pub fn time(why: humantime::DurationError) -> String {
    let why = match why {
        // Its own text repeats the unit.
        humantime::DurationError::UnknownUnit { .. } => "unknown time unit".to_string(),
        why => why.to_string(),
    };
    format!("{why}; times are written 30s, 500ms, 2m")
}
