//! Where an object store is, and how it is reached.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, S3ConditionalPut};
use object_store::local::LocalFileSystem;
use object_store::path::Path as Key;
use object_store::{BackoffConfig, ClientOptions, ObjectStore as Backend, RetryConfig};

use crate::store::StoreError;

/// How long a connection may take to be made, and how long it may stay silent.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);

/// Tries of one request beyond the first, and how long they may take together.
const MAX_RETRIES: usize = 3;
const RETRY_TIMEOUT: Duration = Duration::from_secs(20);

/// Where an [`ObjectStore`](crate::ObjectStore) keeps its objects.
///
/// Credentials never come from here: they are those of [`Self::credentials_file`], else of the environment
/// (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, web identity and container tokens).
#[derive(Debug, Clone)]
pub struct ObjectConfig {
    /// `s3://bucket/prefix`, or `file:///directory`, which is made where it is missing.
    pub url: String,
    /// The base URI of a server that speaks S3; absent for AWS. With `http` nothing is encrypted.
    pub endpoint: Option<String>,
    /// The region; absent for that of the environment, else `us-east-1`.
    pub region: Option<String>,
    /// Whether the bucket is named in the path and not in the host, as most servers but AWS want it; absent
    /// for `true` where there is an `endpoint`.
    pub path_style: Option<bool>,
    /// A file of shared credentials (`aws_access_key_id = …` in section `[default]`).
    pub credentials_file: Option<PathBuf>,
    /// The holder that the prefix belongs to, by its base URI: another one cannot open it.
    pub owner: String,
    /// Octets of rotten objects that are kept for a look at them, apart from the cap of the tier.
    pub quarantine_octets: u64,
}

impl ObjectConfig {
    /// A place with everything else by default.
    #[must_use]
    pub fn new(url: impl Into<String>, owner: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            endpoint: None,
            region: None,
            path_style: None,
            credentials_file: None,
            owner: owner.into(),
            quarantine_octets: 0,
        }
    }

    /// The backend, and the prefix of all keys in it.
    pub(super) fn connect(&self) -> Result<(Arc<dyn Backend>, Key), StoreError> {
        if let Some(dir) = self.url.strip_prefix("file://") {
            return Ok((Arc::new(local(Path::new(dir))?), Key::default()));
        }
        let place = self.url.strip_prefix("s3://").unwrap_or_default();
        let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
        if bucket.is_empty() {
            return Err(unusable("an object store is s3://bucket/prefix or file:///directory"));
        }
        let prefix = Key::parse(prefix).map_err(|_| unusable("the prefix is no object key"))?;
        let store = self.s3(bucket)?.build().map_err(|error| unusable(&error.to_string()))?;
        Ok((Arc::new(store), prefix))
    }

    /// Removes what a process that was killed had half-written in a directory of ours: the library writes aside,
    /// under the object's name, `#` and a number, and neither lists nor removes that later, so that it would count
    /// against no cap. An S3 server does that by itself.
    pub(super) fn sweep(&self) -> Result<(), StoreError> {
        let Some(dir) = self.url.strip_prefix("file://") else {
            return Ok(());
        };
        ["blocks", "quarantine"].iter().try_for_each(|sub| sweep(&Path::new(dir).join(sub)))
    }

    fn s3(&self, bucket: &str) -> Result<AmazonS3Builder, StoreError> {
        let client = ClientOptions::new()
            .with_connect_timeout(CONNECT_TIMEOUT)
            .with_read_timeout(SILENCE_TIMEOUT)
            // A large block may take its time as long as it moves.
            .with_timeout_disabled();
        let retry = RetryConfig {
            backoff: BackoffConfig::default(),
            max_retries: MAX_RETRIES,
            retry_timeout: RETRY_TIMEOUT,
        };
        let path_style = self.path_style.unwrap_or(self.endpoint.is_some());
        let mut builder = AmazonS3Builder::from_env()
            .with_client_options(client)
            .with_retry(retry)
            .with_bucket_name(bucket)
            .with_virtual_hosted_style_request(!path_style)
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            // One object is deleted at a time; not every server deletes several at once.
            .with_disable_bulk_delete(true);
        if let Some(endpoint) = &self.endpoint {
            let endpoint = endpoint.trim_end_matches('/');
            builder = builder.with_endpoint(endpoint).with_allow_http(endpoint.starts_with("http://"));
        }
        if let Some(region) = &self.region {
            builder = builder.with_region(region);
        }
        if let Some(path) = &self.credentials_file {
            let credentials = Credentials::read(path)?;
            builder = builder
                .with_access_key_id(credentials.access_key_id)
                .with_secret_access_key(credentials.secret_access_key);
            if let Some(token) = credentials.session_token {
                builder = builder.with_token(token);
            }
        }
        Ok(builder)
    }
}

fn local(dir: &Path) -> Result<LocalFileSystem, StoreError> {
    if !dir.is_absolute() {
        return Err(unusable("a directory is file:/// and an absolute path"));
    }
    fs::create_dir_all(dir)?;
    let store = LocalFileSystem::new_with_prefix(dir).map_err(|error| unusable(&error.to_string()))?;
    // What a put acknowledges outlives a loss of power.
    Ok(store.with_fsync(true))
}

/// Removes files being written from a directory and those in it.
fn sweep(dir: &Path) -> Result<(), StoreError> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sweep(&entry.path())?;
        } else if is_half_written(&entry.file_name().to_string_lossy()) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn is_half_written(name: &str) -> bool {
    name.rsplit_once('#').is_some_and(|(_, n)| !n.is_empty() && n.bytes().all(|c| c.is_ascii_digit()))
}

fn unusable(why: &str) -> StoreError {
    StoreError::Unusable(why.to_owned())
}

/// Secrets; deliberately without `Debug`.
struct Credentials {
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
}

impl Credentials {
    fn read(path: &Path) -> Result<Self, StoreError> {
        Self::parse(&fs::read_to_string(path)?)
            .ok_or_else(|| unusable("the credentials file has no key and secret in section [default]"))
    }

    /// The section `[default]`, or what stands before all sections.
    fn parse(text: &str) -> Option<Self> {
        let mut within = true;
        let (mut key, mut secret, mut token) = (None, None, None);
        for line in text.lines().map(str::trim) {
            if let Some(section) = line.strip_prefix('[') {
                within = section.trim_end_matches(']').trim() == "default";
            } else if within && let Some((name, value)) = line.split_once('=') {
                let value = Some(value.trim().to_owned());
                match name.trim() {
                    "aws_access_key_id" => key = value,
                    "aws_secret_access_key" => secret = value,
                    "aws_session_token" => token = value,
                    _ => {}
                }
            }
        }
        Some(Self { access_key_id: key?, secret_access_key: secret?, session_token: token })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_bucket_or_a_directory() {
        for wrong in ["", "s3:/bucket", "s3://", "s3:///prefix", "file://relative", "gs://b/p", "s3://b/p//q"]
        {
            let connected = ObjectConfig::new(wrong, "o").connect();
            assert!(matches!(connected, Err(StoreError::Unusable(_))), "{wrong}");
        }
        for (url, prefix) in [("s3://b", ""), ("s3://b/", ""), ("s3://b/p/q", "p/q"), ("s3://b/p/", "p")] {
            let mut config = ObjectConfig::new(url, "o");
            config.endpoint = Some("http://127.0.0.1:1/".into());
            assert_eq!(config.connect().unwrap().1.as_ref(), prefix, "{url}");
        }
    }

    #[test]
    fn what_was_half_written_is_swept_away() {
        let dir = tempfile::TempDir::new().unwrap();
        let shard = dir.path().join("blocks").join("ab");
        fs::create_dir_all(&shard).unwrap();
        for name in ["whole", "whole#1", "#2", "other#x"] {
            fs::write(shard.join(name), "octets").unwrap();
        }
        fs::write(dir.path().join("mine#1"), "octets").unwrap();
        ObjectConfig::new(format!("file://{}", dir.path().display()), "owner").sweep().unwrap();
        let names = |dir: &Path| {
            let mut names: Vec<_> =
                fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort_unstable();
            names
        };
        assert_eq!(names(&shard), ["other#x", "whole"]);
        assert_eq!(names(dir.path()), ["blocks", "mine#1"], "what is not ours stays");
    }

    #[test]
    fn credentials_are_those_of_the_default_section() {
        let text = "[other]\naws_access_key_id=x\n[default]\naws_access_key_id = a\n# aws_session_token = t\n\
                    aws_secret_access_key=b=\n[more]\naws_session_token=y\n";
        let found = Credentials::parse(text).unwrap();
        assert_eq!((found.access_key_id.as_str(), found.secret_access_key.as_str()), ("a", "b="));
        assert!(found.session_token.is_none());
        assert!(Credentials::parse("[default]\naws_access_key_id = a\n").is_none());
    }
}
