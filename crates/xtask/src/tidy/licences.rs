//! The licences of the workspace's dependencies. `fuzz/` is a separate workspace that is never released, so it is not
//! checked.

use spdx::{Expression, ParseMode};

use super::Finding;
use crate::workspace::Package;

/// Licences that a binary under MIT or Apache-2.0 may contain.
const ALLOWED: [&str; 12] = [
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MPL-2.0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];
/// Licence exceptions that only give more rights.
const ALLOWED_EXCEPTIONS: [&str; 1] = ["LLVM-exception"];

pub fn check<'a>(packages: impl Iterator<Item = &'a Package>) -> Vec<Finding> {
    let found = packages.filter_map(|package| {
        let what = objection(package.license.as_deref())?;
        Some(Finding::new("Cargo.toml", 0, format!("{} {}: {what}", package.name, package.version)))
    });
    found.collect()
}

fn objection(licence: Option<&str>) -> Option<String> {
    let Some(licence) = licence else { return Some("names no licence".into()) };
    // LAX reads the old `MIT/Apache-2.0` as an OR.
    match Expression::parse_mode(licence, ParseMode::LAX) {
        Ok(expression) if expression.evaluate(allowed) => None,
        Ok(_) => Some(format!("licence `{licence}` is not allowed; use another package")),
        Err(error) => Some(format!("licence `{licence}` cannot be read: {}", error.reason)),
    }
}

fn allowed(required: &spdx::LicenseReq) -> bool {
    let exception = required.addition.as_ref().map(|addition| addition.to_string());
    required.license.id().is_some_and(|id| ALLOWED.contains(&id.name))
        && exception.is_none_or(|name| ALLOWED_EXCEPTIONS.contains(&name.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bites() {
        for bad in
            ["GPL-3.0-only", "MIT AND GPL-2.0", "Proprietary", "Apache-2.0 WITH Classpath-exception-2.0", "MIT OR"]
        {
            assert!(objection(Some(bad)).is_some(), "{bad}");
        }
        assert!(objection(None).is_some());
    }

    #[test]
    fn allows() {
        for good in [
            "MIT",
            "MIT/Apache-2.0",
            "Unlicense/MIT",
            "GPL-3.0 OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT",
            "BSD-2-Clause AND BSD-3-Clause AND ISC AND Zlib AND BSL-1.0 AND CC0-1.0 AND MPL-2.0",
        ] {
            assert_eq!(objection(Some(good)), None, "{good}");
        }
    }
}
