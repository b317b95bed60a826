//! The common parts of plain files: the class [`NativeRuntime`].

use iomill::{CacheOptions, EngineKind, Runtime, RuntimeOptions};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors::OrRaise;
use crate::words::words;

/// The common parts of plain files.
#[pyclass(frozen, module = "iomill._iomill", name = "Runtime")]
pub struct NativeRuntime(pub Runtime);

const ENGINES: [EngineKind; 4] = [EngineKind::Uring, EngineKind::Aio, EngineKind::Posix, EngineKind::Mmap];

fn runtime_options(
    cache_bytes: Option<u64>,
    cache_max_bytes: Option<u64>,
    engine: Option<&str>,
) -> PyResult<RuntimeOptions> {
    let mut options = RuntimeOptions::new();
    if let Some(bytes) = cache_bytes {
        options = options.cache_bytes(bytes);
    }
    if let Some(bytes) = cache_max_bytes {
        options = options.cache(CacheOptions::new().max_bytes(bytes));
    }
    if let Some(name) = engine {
        let Some(kind) = ENGINES.into_iter().find(|kind| kind.to_string() == name) else {
            let names = ENGINES.map(|kind| kind.to_string()).join(", ");
            return Err(PyValueError::new_err(format!("no engine named {name:?}; there are: {names}")));
        };
        options = options.engine(kind);
    }
    Ok(options)
}

/// Makes a runtime. If `shared`, it is the default runtime of plain files.
#[pyfunction]
#[pyo3(signature = (shared, cache_bytes=None, cache_max_bytes=None, engine=None))]
pub fn start_runtime(
    py: Python<'_>,
    shared: bool,
    cache_bytes: Option<u64>,
    cache_max_bytes: Option<u64>,
    engine: Option<&str>,
) -> PyResult<NativeRuntime> {
    let options = runtime_options(cache_bytes, cache_max_bytes, engine)?;
    let runtime = py.detach(|| if shared { options.start_shared() } else { options.start() });
    Ok(NativeRuntime(runtime.or_raise()?))
}

/// The default runtime of plain files.
#[pyfunction]
pub fn shared_runtime(py: Python<'_>) -> PyResult<NativeRuntime> {
    Ok(NativeRuntime(py.detach(Runtime::shared).or_raise()?))
}

#[pymethods]
impl NativeRuntime {
    fn resize_cache(&self, py: Python<'_>, bytes: u64) -> PyResult<()> {
        py.detach(|| self.0.resize_cache(bytes)).or_raise()
    }

    /// Hits, misses and the bytes of the cache.
    fn counters(&self, py: Python<'_>) -> (u64, u64, u64) {
        let counters = py.detach(|| self.0.counters());
        (counters.hits, counters.misses, counters.cache_bytes)
    }

    fn notices(&self, py: Python<'_>) -> Vec<String> {
        py.detach(|| self.0.notices()).iter().map(|notice| words(notice)).collect()
    }

    fn metrics(&self, py: Python<'_>) -> String {
        py.detach(|| self.0.metrics())
    }
}
