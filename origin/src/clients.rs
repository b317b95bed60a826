//! Stores by URL, with the usual environment variables: [`target`]. Programs that find a store by the same URL and
//! settings give it the same name, so they share its granules.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use object_store_0_14 as object_store;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::client::ClientConfigKey;
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreScheme, RetryConfig};
use url::{Position, Url};

/// The parts of a URL.
#[derive(Debug)]
#[non_exhaustive]
pub struct Target {
    /// The store.
    pub store: Arc<dyn ObjectStore>,
    /// The name of the store for all processes that share a cache: two stores with one name have the same objects.
    pub name: String,
    /// The place in the store.
    pub path: Path,
}

/// Why a URL names no store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The URL or a setting is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The store refuses its settings.
    #[error(transparent)]
    Store(#[from] object_store::Error),
}

/// A result of [`target`].
pub type Result<T> = std::result::Result<T, Error>;

/// The settings of a store, and the number and total time of its retries.
struct Settings {
    own: Vec<(String, String)>,
    retry: RetryConfig,
}

fn wrong(why: String) -> Error {
    Error::Invalid(why)
}

impl Settings {
    fn new(config: &BTreeMap<String, String>) -> Result<Settings> {
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
    fn keys<K: FromStr>(&self, store: &str) -> Result<Vec<(K, String)>> {
        let key = |(key, value): &(String, String)| match key.parse() {
            Ok(key) => Ok((key, value.clone())),
            Err(_) => Err(wrong(format!(
                "config: {store} has no setting {key:?}; keys have the names of the environment variables, in upper or lower case"
            ))),
        };
        self.own.iter().map(key).collect()
    }
}

/// Finds the store of a URL: s3, gs, az, abfs, http, https or file. `config` has settings by the names of the
/// environment variables, in upper or lower case, and `max_retries` and `retry_timeout` in seconds.
pub fn target(text: &str, config: &BTreeMap<String, String>) -> Result<Target> {
    let url = Url::parse(text).map_err(|error| wrong(format!("{text:?} is no URL: {error}")))?;
    let unknown = || {
        wrong(format!(
            "no object store has URLs such as {text:?}; the known schemes are s3://, gs://, az://, abfs://, http://, https:// and file:///"
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

/// Installs the provider of cryptography for clients of TLS. All clients use the same one, so a second call changes
/// nothing.
fn use_ring() {
    let _there_already = rustls::crypto::ring::default_provider().install_default();
}

/// Whether an endpoint has no TLS: the user has named it so.
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

fn s3(url: &Url, settings: &Settings, place: String) -> Result<Named> {
    let mut builder = AmazonS3Builder::from_env().with_url(url.as_str()).with_retry(settings.retry.clone());
    for (key, value) in settings.keys::<AmazonS3ConfigKey>("S3")? {
        builder = builder.with_config(key, value);
    }
    let endpoint = [AmazonS3ConfigKey::S3Endpoint, AmazonS3ConfigKey::Endpoint];
    let endpoint = endpoint.iter().find_map(|key| builder.get_config_value(key));
    if is_plain(endpoint.as_deref()) {
        builder = builder.with_allow_http(true);
    }
    Ok((Arc::new(builder.build()?), named(place, endpoint)))
}

fn gcs(url: &Url, settings: &Settings, place: String) -> Result<Named> {
    let mut builder = GoogleCloudStorageBuilder::from_env().with_url(url.as_str()).with_retry(settings.retry.clone());
    for (key, value) in settings.keys::<GoogleConfigKey>("GCS")? {
        builder = builder.with_config(key, value);
    }
    let endpoint = builder.get_config_value(&GoogleConfigKey::BaseUrl);
    Ok((Arc::new(builder.build()?), named(place, endpoint)))
}

fn azure(url: &Url, settings: &Settings, place: String) -> Result<Named> {
    let mut builder = MicrosoftAzureBuilder::from_env().with_url(url.as_str()).with_retry(settings.retry.clone());
    for (key, value) in settings.keys::<AzureConfigKey>("Azure")? {
        builder = builder.with_config(key, value);
    }
    let endpoint = builder.get_config_value(&AzureConfigKey::Endpoint);
    if is_plain(endpoint.as_deref()) {
        builder = builder.with_allow_http(true);
    }
    let account = builder.get_config_value(&AzureConfigKey::AccountName);
    Ok((Arc::new(builder.build()?), named(place, endpoint.or(account))))
}

fn http(url: &Url, settings: &Settings, place: String) -> Result<Named> {
    let mut builder = HttpBuilder::new().with_url(&url[..Position::BeforePath]).with_retry(settings.retry.clone());
    if url.scheme() == "http" {
        builder = builder.with_config(ClientConfigKey::AllowHttp, "true");
    }
    for (key, value) in settings.keys::<ClientConfigKey>("HTTP")? {
        builder = builder.with_config(key, value);
    }
    Ok((Arc::new(builder.build()?), place))
}
