//! Guarded writes: GUARD and FENCED.

mod command_kinds;
mod guard;

/// Returns the first word of an error.
fn word(refused: &dlock_testkit::Value) -> &str {
    refused.error().split(' ').next().unwrap_or_default()
}
