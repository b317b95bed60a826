//! Events and spans for the feature `tracing`, with the target `iomill`. Without the feature these functions do
//! nothing. Non-goals: single reads and writes, which [`Counters`](crate::Counters) count.
//!
//! A subscriber runs where the event happens: under locks of the array, and perhaps before pages that others wait for.
//! So a blocking call there is refused ([`is_telling`]), and a future or callback begins on another thread.

#[cfg(feature = "tracing")]
use std::cell::Cell;
use std::fmt::Display;
use std::path::PathBuf;

#[cfg(feature = "tracing")]
use super::thread::Raised;

#[cfg(feature = "tracing")]
thread_local! {
    static TELLING: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is telling a subscriber of an event. Then it must not wait, and must not begin I/O: it may
/// have the locks for that.
#[inline]
pub fn is_telling() -> bool {
    #[cfg(feature = "tracing")]
    return TELLING.with(Cell::get);
    #[cfg(not(feature = "tracing"))]
    false
}

/// The span of one call. It lasts until it is dropped. The steps of a future enter it on different threads.
#[derive(Debug)]
pub struct Span(#[cfg(feature = "tracing")] tracing::Span);

impl Span {
    /// No span.
    pub fn none() -> Span {
        Span(
            #[cfg(feature = "tracing")]
            tracing::Span::none(),
        )
    }

    /// The span that the calling thread is in. Work on another thread enters it, so that its spans have their parent.
    pub fn here() -> Span {
        Span(
            #[cfg(feature = "tracing")]
            tracing::Span::current(),
        )
    }

    /// Runs work inside.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        #[cfg(feature = "tracing")]
        return self.0.in_scope(work);
        #[cfg(not(feature = "tracing"))]
        work()
    }
}

/// Makes a function that begins a span: of calls on drives, or of calls on a file.
macro_rules! span {
    ($(#[$doc:meta])* $name:ident, $drives:ident: drives) => {
        $(#[$doc])*
        pub fn $name($drives: &[PathBuf]) -> Span {
            #[cfg(feature = "tracing")]
            return Span(tracing::info_span!(target: "iomill", stringify!($name), ?$drives));
            #[cfg(not(feature = "tracing"))]
            let _ = $drives;
            #[cfg(not(feature = "tracing"))]
            Span::none()
        }
    };
    ($(#[$doc:meta])* $name:ident, $file:ident: file) => {
        $(#[$doc])*
        pub fn $name($file: &str) -> Span {
            #[cfg(feature = "tracing")]
            return Span(tracing::debug_span!(target: "iomill", stringify!($name), $file));
            #[cfg(not(feature = "tracing"))]
            let _ = $file;
            #[cfg(not(feature = "tracing"))]
            Span::none()
        }
    };
}

span!(/// An array is created.
    create, drives: drives);
span!(/// An array is opened.
    open, drives: drives);
span!(/// An array is compared with its catalog.
    check, drives: drives);
span!(/// The same, with repairs.
    repair, drives: drives);
span!(/// An array is closed.
    close, drives: drives);
span!(/// A file gets a whole content.
    put, file: file);
span!(/// A file gets the content of another one.
    copy, file: file);
span!(/// A draft gets its name.
    publish, file: file);
span!(/// The bytes of a file become durable.
    sync, file: file);

/// Emits an event. A panic of a subscriber must not fail the work that the event is about: some of it is another
/// caller's. The message of the panic has been printed.
#[cfg(feature = "tracing")]
fn emit(event: impl FnOnce()) {
    let _telling = Raised::new(&TELLING);
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(event));
}

/// A notice to the user (`info().notices`).
pub fn notice(text: &str) {
    #[cfg(feature = "tracing")]
    emit(|| tracing::warn!(target: "iomill", "{text}"));
    #[cfg(not(feature = "tracing"))]
    let _ = text;
}

/// An array was opened or created.
pub fn opened(drives: usize, files: usize) {
    #[cfg(feature = "tracing")]
    emit(|| tracing::info!(target: "iomill", drives, files, "array opened"));
    #[cfg(not(feature = "tracing"))]
    let _ = (drives, files);
}

/// An array was closed.
pub fn closed(drives: usize, error: Option<&impl Display>) {
    #[cfg(feature = "tracing")]
    emit(|| match error {
        None => tracing::info!(target: "iomill", drives, "array closed"),
        Some(error) => tracing::error!(target: "iomill", drives, %error, "array closed with an error"),
    });
    #[cfg(not(feature = "tracing"))]
    let _ = (drives, error);
}

/// Pages of a file could not be written to a drive. The next sync of each handle reports it.
pub fn write_back_failed(file: &str, error: &impl Display) {
    #[cfg(feature = "tracing")]
    emit(|| tracing::error!(target: "iomill", file, %error, "pages could not be written back"));
    #[cfg(not(feature = "tracing"))]
    let _ = (file, error);
}
