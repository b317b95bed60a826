//! The bounds that are recorded in `gate.toml`.

use iomill::{Error, Result};
use serde::Deserialize;

/// The maximum of a ratio. Less is better.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bound {
    /// The ratio's name.
    pub name: String,
    /// Its description, in one line.
    pub what: String,
    /// The bound.
    pub at_most: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Recorded {
    ratio: Vec<Bound>,
}

/// The bounds of this version.
pub(super) fn recorded() -> Result<Vec<Bound>> {
    let recorded: Recorded = toml::from_str(include_str!("../../gate.toml"))
        .map_err(|e| Error::invalid("the gate's bounds, gate.toml", e.to_string()))?;
    Ok(recorded.ratio)
}
