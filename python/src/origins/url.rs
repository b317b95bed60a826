//! Origins by URL, with the usual environment variables: [`Target`].

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::client::ClientConfigKey;
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreScheme, RetryConfig};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use url::{Position, Url};

use super::results::exception;

/// What a URL names.
pub struct Target {
    pub store: Arc<dyn ObjectStore>,
    /// What the store is to all processes that share a cache: two stores with one name have the same objects.
    pub name: String,
    /// Where in the store the URL points.
    pub path: Path,
}

/// Settings that a store takes beside its own: how often and how long a request is tried again.
struct Settings {
    own: Vec<(String, String)>,
    retry: RetryConfig,
}

fn wrong(why: String) -> PyErr {
    PyValueError::new_err(why)
}

impl Settings {
    fn new(config: &BTreeMap<String, String>) -> PyResult<Settings> {
        let mut settings = Settings { own: Vec::new(), retry: RetryConfig::default() };
        for (key, value) in config {
            let number = || value.parse::<f64>().map_err(|error| wrong(format!("config: {key}={value:?}: {error}")));
            match key.to_ascii_lowercase().as_str() {
                "max_retries" => settings.retry.max_retries = number()? as usize,
                "retry_timeout" => {
                    let seconds = Duration::try_from_secs_f64(number()?);
                    settings.retry.retry_timeout =
                        seconds.map_err(|error| wrong(format!("config: {key}={value:?}: {error}")))?;
                }
                other => settings.own.push((other.to_owned(), value.clone())),
            }
        }
        Ok(settings)
    }

    /// The keys of a store.
    fn keys<K: FromStr>(&self, store: &str) -> PyResult<Vec<(K, String)>> {
        let key = |(key, value): &(String, String)| match key.parse() {
            Ok(key) => Ok((key, value.clone())),
            Err(_) => Err(wrong(format!(
                "config: {store} has no setting {key:?}; keys are as the environment variables, in any case"
            ))),
        };
        self.own.iter().map(key).collect()
    }
}

/// Finds the store of a URL.
pub fn target(text: &str, config: &BTreeMap<String, String>) -> PyResult<Target> {
    let url = Url::parse(text).map_err(|error| wrong(format!("{text:?} is no URL: {error}")))?;
    let unknown = || {
        wrong(format!(
            "no object store has URLs such as {text:?}; there are s3://, gs://, az://, abfs://, http://, https:// and file:///"
        ))
    };
    let (scheme, path) = ObjectStoreScheme::parse(&url).map_err(|_| unknown())?;
    let settings = Settings::new(config)?;
    let place = place_of(&url, &path);
    use_ring();
    let (store, name): (Arc<dyn ObjectStore>, String) = match scheme {
        ObjectStoreScheme::Local => (Arc::new(LocalFileSystem::new()), "file://".to_owned()),
        ObjectStoreScheme::AmazonS3 => s3(&url, &settings, place)?,
        ObjectStoreScheme::GoogleCloudStorage => gcs(&url, &settings, place)?,
        ObjectStoreScheme::MicrosoftAzure => azure(&url, &settings, place)?,
        ObjectStoreScheme::Http => http(&url, &settings, place)?,
        _ => return Err(unknown()),
    };
    Ok(Target { store, name, path })
}

/// A URL without the path in the store.
fn place_of(url: &Url, path: &Path) -> String {
    let all: Vec<&str> = url.path().split('/').filter(|part| !part.is_empty()).collect();
    let bucket = &all[..all.len().saturating_sub(path.parts().count())];
    let mut place = url[..Position::BeforePath].to_owned();
    bucket.iter().for_each(|part| place.extend(["/", part]));
    place
}

/// Clients of TLS take the cryptography that is there. It is the same for all, so a second try changes nothing.
fn use_ring() {
    let _there_already = rustls::crypto::ring::default_provider().install_default();
}

/// An endpoint without TLS is one that the user has named.
fn is_plain(endpoint: Option<&str>) -> bool {
    endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"))
}

fn named(place: String, endpoint: Option<String>) -> String {
    match endpoint {
        Some(endpoint) => format!("{place} at {endpoint}"),
        None => place,
    }
}

type Named = (Arc<dyn ObjectStore>, String);

fn s3(url: &Url, settings: &Settings, place: String) -> PyResult<Named> {
    let mut builder = AmazonS3Builder::from_env().with_url(url.as_str()).with_retry(settings.retry.clone());
    for (key, value) in settings.keys::<AmazonS3ConfigKey>("S3")? {
        builder = builder.with_config(key, value);
    }
    let endpoint = [AmazonS3ConfigKey::S3Endpoint, AmazonS3ConfigKey::Endpoint];
    let endpoint = endpoint.iter().find_map(|key| builder.get_config_value(key));
    if is_plain(endpoint.as_deref()) {
        builder = builder.with_allow_http(true);
    }
    Ok((Arc::new(builder.build().map_err(exception)?), named(place, endpoint)))
}

fn gcs(url: &Url, settings: &Settings, place: String) -> PyResult<Named> {
    let mut builder = GoogleCloudStorageBuilder::from_env().with_url(url.as_str()).with_retry(settings.retry.clone());
    for (key, value) in settings.keys::<GoogleConfigKey>("GCS")? {
        builder = builder.with_config(key, value);
    }
    let endpoint = builder.get_config_value(&GoogleConfigKey::BaseUrl);
    Ok((Arc::new(builder.build().map_err(exception)?), named(place, endpoint)))
}

fn azure(url: &Url, settings: &Settings, place: String) -> PyResult<Named> {
    let mut builder = MicrosoftAzureBuilder::from_env().with_url(url.as_str()).with_retry(settings.retry.clone());
    for (key, value) in settings.keys::<AzureConfigKey>("Azure")? {
        builder = builder.with_config(key, value);
    }
    let endpoint = builder.get_config_value(&AzureConfigKey::Endpoint);
    if is_plain(endpoint.as_deref()) {
        builder = builder.with_allow_http(true);
    }
    let account = builder.get_config_value(&AzureConfigKey::AccountName);
    Ok((Arc::new(builder.build().map_err(exception)?), named(place, endpoint.or(account))))
}

fn http(url: &Url, settings: &Settings, place: String) -> PyResult<Named> {
    let mut builder = HttpBuilder::new().with_url(&url[..Position::BeforePath]).with_retry(settings.retry.clone());
    if url.scheme() == "http" {
        builder = builder.with_config(ClientConfigKey::AllowHttp, "true");
    }
    for (key, value) in settings.keys::<ClientConfigKey>("HTTP")? {
        builder = builder.with_config(key, value);
    }
    Ok((Arc::new(builder.build().map_err(exception)?), place))
}
