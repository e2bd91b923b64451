//! Guarded writes: GUARD and FENCED.

mod command_kinds;
mod guard;

/// The word that an error begins with.
fn word(refused: &dlock_testkit::Value) -> &str {
    refused.error().split(' ').next().unwrap_or_default()
}
