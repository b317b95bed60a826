//! Events for the feature `tracing`, with the target `iomill`. Without the feature these functions do nothing.
//! Non-goals: events of single reads and writes, which [`Counters`](crate::Counters) count.

use std::fmt::Display;

/// A notice to the user (`info().notices`).
pub fn notice(text: &str) {
    #[cfg(feature = "tracing")]
    tracing::warn!(target: "iomill", "{text}");
    #[cfg(not(feature = "tracing"))]
    let _ = text;
}

/// An array was opened or created.
pub fn opened(drives: usize, files: usize) {
    #[cfg(feature = "tracing")]
    tracing::info!(target: "iomill", drives, files, "array opened");
    #[cfg(not(feature = "tracing"))]
    let _ = (drives, files);
}

/// An array was closed.
pub fn closed(drives: usize, error: Option<&impl Display>) {
    #[cfg(feature = "tracing")]
    match error {
        None => tracing::info!(target: "iomill", drives, "array closed"),
        Some(error) => tracing::error!(target: "iomill", drives, %error, "array closed with an error"),
    }
    #[cfg(not(feature = "tracing"))]
    let _ = (drives, error);
}

/// Pages of a file could not be written to a drive. The next sync of each handle reports it.
pub fn write_back_failed(file: &str, error: &impl Display) {
    #[cfg(feature = "tracing")]
    tracing::error!(target: "iomill", file, %error, "pages could not be written back");
    #[cfg(not(feature = "tracing"))]
    let _ = (file, error);
}
