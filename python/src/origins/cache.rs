//! A cache on local drives: the class [`NativeCache`].

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use iomill_origin::{Cache, Options, Revalidate};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors::{exception, of_system, os_error};
use crate::runtime::NativeRuntime;
use crate::words::words;

/// A cache on local drives. A forked child opens the drives again at its first call.
#[pyclass(frozen, module = "iomill._iomill", name = "Cache")]
pub struct NativeCache(pub Cache);

fn refused(error: iomill_origin::Error) -> PyErr {
    use iomill_origin::Error;
    let (errno, path) = match &error {
        Error::Invalid { .. } | Error::Foreign { .. } | Error::Small { .. } => {
            return PyValueError::new_err(error.to_string());
        }
        Error::NoDirectory { path } | Error::Unmounted { path } => (ENOENT, path),
        Error::Late { path, .. } => (ETIMEDOUT, path),
        Error::Gone { path } | Error::Label { path, .. } => (EIO, path),
        Error::Index { path, source, .. } | Error::Io { path, source, .. } => {
            (source.raw_os_error().unwrap_or(EIO), path)
        }
        _ => {
            return match error {
                Error::Iomill(error) => exception(error),
                error => os_error(EIO, error.to_string(), None),
            };
        }
    };
    let text = match &error {
        Error::NoDirectory { .. } => "No such file or directory; mount the drive, or make the directory".to_owned(),
        Error::Io { action, source, .. } => of_system(action, None, source),
        Error::Index { len_bytes, source, .. } => {
            format!("no memory for the index of {len_bytes} bytes: {}", of_system("open", None, source))
        }
        error => error.to_string().replacen(&format!("{}: ", path.display()), "", 1),
    };
    os_error(errno, words(&text), Some(path.into()))
}

const ENOENT: i32 = 2;
const EIO: i32 = 5;
const ETIMEDOUT: i32 = 110;

/// A time of Python in seconds.
pub fn seconds(name: &str, value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value).map_err(|error| PyValueError::new_err(format!("{name}={value}: {error}")))
}

/// Opens a cache. `revalidate` has prefixes with seconds: 0 for each call, infinity for never.
#[pyfunction]
#[pyo3(signature = (
    drives, runtime, *, bytes=None, granule_bytes=None, index_dir=None, revalidate=Vec::new(), by_time=false, on_root=false, fill_bytes=None,
    read_within=None, wait_for_others=None, admit=None
))]
#[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub fn open_cache(
    py: Python<'_>,
    drives: Vec<PathBuf>,
    runtime: &NativeRuntime,
    bytes: Option<u64>,
    granule_bytes: Option<u32>,
    index_dir: Option<PathBuf>,
    revalidate: Vec<(String, f64)>,
    by_time: bool,
    on_root: bool,
    fill_bytes: Option<u64>,
    read_within: Option<f64>,
    wait_for_others: Option<f64>,
    admit: Option<f64>,
) -> PyResult<NativeCache> {
    let mut options = Options::new().runtime(&runtime.0).by_time(by_time).on_root(on_root);
    if let Some(bytes) = bytes {
        options = options.bytes(bytes);
    }
    if let Some(bytes) = granule_bytes {
        options = options.granule_bytes(bytes);
    }
    if let Some(dir) = index_dir {
        options = options.index_dir(dir);
    }
    for (prefix, after) in revalidate {
        let when = match after {
            0.0 => Revalidate::Always,
            f64::INFINITY => Revalidate::Never,
            after => Revalidate::After(seconds("revalidate", after)?),
        };
        options = options.revalidate(prefix, when);
    }
    if let Some(bytes) = fill_bytes {
        options = options.fill_bytes(bytes);
    }
    if let Some(most) = read_within {
        options = options.read_within(seconds("read_within", most)?);
    }
    if let Some(most) = wait_for_others {
        options = options.wait_for_others(seconds("wait_for_others", most)?);
    }
    if let Some(share) = admit {
        options = options.admit(share);
    }
    py.detach(|| Cache::open(drives, options)).map(NativeCache).map_err(refused)
}

#[pymethods]
impl NativeCache {
    /// The counters of this process.
    fn counters(&self) -> HashMap<&'static str, u64> {
        self.0.counters().named().into_iter().collect()
    }

    fn notices(&self) -> Vec<String> {
        self.0.notices().iter().map(|notice| words(notice)).collect()
    }

    /// The memory of the index, which all processes share.
    fn index_bytes(&self) -> u64 {
        self.0.index_bytes()
    }

    /// Waits until all fetched granules are written, for at most `seconds`. Returns whether they are.
    fn wait_until_written(&self, py: Python<'_>, most: f64) -> PyResult<bool> {
        let most = seconds("most", most)?;
        Ok(py.detach(|| self.0.flush_within(most)))
    }

    /// Unpins all bytes, those of old versions too. Returns how many were pinned.
    fn unpin_all(&self, py: Python<'_>) -> PyResult<u64> {
        py.detach(|| self.0.unpin_all()).map_err(refused)
    }

    /// Waits until the index has the contents of the drives.
    fn wait_until_loaded(&self, py: Python<'_>) {
        py.detach(|| self.0.wait_until_loaded());
    }
}
