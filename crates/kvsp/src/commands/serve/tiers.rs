//! Flags about the tiers of a holder or an instance.

use std::path::PathBuf;

use kvsp_blocks::{BlocksConfig, DiskTier, Eviction, ObjectTier};

use super::StartError;
use crate::octets::Octets;

/// Where blocks are kept, and how many octets of them.
#[derive(Debug, clap::Args)]
pub(crate) struct TierArgs {
    /// Host memory for blocks.
    #[arg(long, value_name = "SIZE", env = "KVSP_HOST_OCTETS")]
    host_octets: Option<Octets>,
    /// Directory of the disk tier; absent for none.
    #[arg(long, value_name = "DIR", env = "KVSP_DISK_DIR")]
    disk_dir: Option<PathBuf>,
    /// Octets of the disk tier.
    #[arg(long, value_name = "SIZE", env = "KVSP_DISK_OCTETS")]
    disk_octets: Option<Octets>,
    /// The object tier: s3://BUCKET/PREFIX or file:///DIRECTORY; absent for none. Credentials come from
    /// AWS_ACCESS_KEY_ID and its like, or from a file that the configuration names.
    #[arg(long, value_name = "URL", env = "KVSP_OBJECT_URL")]
    object_url: Option<String>,
    /// Octets of the object tier.
    #[arg(long, value_name = "SIZE", env = "KVSP_OBJECT_OCTETS")]
    object_octets: Option<Octets>,
    /// Which block goes first where room is needed.
    #[arg(long, value_enum, value_name = "POLICY", env = "KVSP_EVICTION")]
    eviction: Option<PolicyName>,
}

/// An eviction policy by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum PolicyName {
    /// The block that was not used for longest.
    Lru,
    /// By recency and frequency.
    TinyLfu,
}

impl TierArgs {
    /// Puts the flags over the configuration.
    pub(super) fn merge(&self, blocks: &mut BlocksConfig) -> Result<(), StartError> {
        if let Some(Octets(octets)) = self.host_octets {
            blocks.host_octets = octets;
        }
        match self.eviction {
            Some(PolicyName::Lru) => blocks.eviction = Eviction::Lru,
            Some(PolicyName::TinyLfu) => blocks.eviction = Eviction::TinyLfu,
            None => {}
        }
        let names = ["--disk-dir", "--disk-octets"];
        if let Some((dir, octets)) = pair(
            names,
            self.disk_dir.clone(),
            self.disk_octets,
            blocks.disk.as_mut().map(|disk| &mut disk.octets),
        )? {
            let read_mbit_per_s = blocks.disk.as_ref().and_then(|disk| disk.read_mbit_per_s);
            blocks.disk = Some(DiskTier { dir, octets, read_mbit_per_s });
        }
        let names = ["--object-url", "--object-octets"];
        let known = blocks.object.as_mut().map(|object| &mut object.octets);
        if let Some((url, octets)) = pair(names, self.object_url.clone(), self.object_octets, known)? {
            let before = blocks.object.take().unwrap_or_default();
            blocks.object = Some(ObjectTier { url, octets, ..before });
        }
        Ok(())
    }
}

/// The place and the cap of a tier, which are given together; a cap alone changes that of the configuration.
fn pair<T>(
    [place_flag, octets_flag]: [&str; 2],
    place: Option<T>,
    octets: Option<Octets>,
    known: Option<&mut u64>,
) -> Result<Option<(T, u64)>, StartError> {
    match (place, octets, known) {
        (Some(place), Some(Octets(octets)), _) => Ok(Some((place, octets))),
        (None, None, _) => Ok(None),
        (None, Some(Octets(octets)), Some(known)) => {
            *known = octets;
            Ok(None)
        }
        (Some(_), None, _) => {
            Err(StartError::Usage(format!("{place_flag} needs {octets_flag}: the tier has a hard cap")))
        }
        (None, Some(_), None) => Err(StartError::Usage(format!("{octets_flag} needs {place_flag}"))),
    }
}
