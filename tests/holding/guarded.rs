//! Guarded writes: GUARD and FENCED.

mod fenced;
mod guard;
mod kinds;

/// The word that an error begins with.
fn word(refused: &dlock_testkit::Value) -> &str {
    refused.error().split(' ').next().unwrap_or_default()
}
