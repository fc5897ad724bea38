//! The closed registries of the profile's section 2.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A name is not in its registry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not a registered {registry}")]
pub struct Unregistered {
    /// The registry, in words.
    pub registry: &'static str,
    /// The name that was given, cut to 64 characters.
    pub name: String,
}

macro_rules! registry {
    ($(#[$doc:meta])* $name:ident, $registry:literal, { $($(#[$vdoc:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$vdoc])* #[serde(rename = $text)] $variant),+
        }

        impl $name {
            /// Every registered value, in the registry's order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The registered name.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = Unregistered;
            fn from_str(text: &str) -> Result<Self, Unregistered> {
                match text {
                    $($text => Ok(Self::$variant),)+
                    _ => Err(Unregistered { registry: $registry, name: text.chars().take(64).collect() }),
                }
            }
        }
    };
}

registry!(
    /// Element types of a stored cache ("KVSP Element Types").
    ElementType, "element type", {
        /// IEEE 754 binary32.
        Float32 = "float32",
        /// IEEE 754 binary16.
        Float16 = "float16",
        /// bfloat16.
        Bfloat16 = "bfloat16",
        /// 8-bit float, 4 exponent bits, scale 1.
        Fp8E4m3 = "fp8_e4m3",
        /// 8-bit float, 5 exponent bits, scale 1.
        Fp8E5m2 = "fp8_e5m2",
        /// Signed octet, scale 1.
        Int8 = "int8",
        /// Unsigned octet, scale 1.
        Uint8 = "uint8",
    }
);

impl ElementType {
    /// Octets of one element.
    #[must_use]
    pub const fn octets(self) -> usize {
        match self {
            Self::Float32 => 4,
            Self::Float16 | Self::Bfloat16 => 2,
            Self::Fp8E4m3 | Self::Fp8E5m2 | Self::Int8 | Self::Uint8 => 1,
        }
    }
}

registry!(
    /// Layouts of codec `raw`.
    Layout, "layout", {
        /// Draft section 4.3: K and V, token slowest, dimension fastest.
        Kvsp1 = "kvsp-layout-1",
        /// One latent vector a token in the K section, V empty.
        Mla1 = "kvsp-mla-1",
    }
);

registry!(
    /// Storage tiers, fastest first.
    Tier, "tier", {
        /// Accelerator memory (of the reference engine: its page pool).
        Device = "device",
        /// Host memory.
        Host = "host",
        /// A local disk.
        Disk = "disk",
        /// An object store.
        Object = "object",
    }
);

registry!(
    /// Sampler methods.
    SamplerMethod, "sampler method", {
        /// The highest logit.
        Greedy = "greedy",
        /// The whole distribution.
        Multinomial = "multinomial",
        /// The k highest.
        TopK = "top-k",
        /// The smallest set of mass p.
        TopP = "top-p",
        /// At least p times the highest probability.
        MinP = "min-p",
    }
);

registry!(
    /// Positional encodings, without their parameters.
    PositionalEncoding, "positional encoding", {
        /// None.
        None = "none",
        /// A learned table.
        Learned = "learned",
        /// ALiBi.
        Alibi = "alibi",
        /// Rotary.
        Rope = "rope",
        /// Rotary, linearly scaled.
        RopeLinear = "rope-linear",
        /// Rotary, dynamic NTK; needs `regime`.
        RopeDynamic = "rope-dynamic",
        /// YaRN.
        RopeYarn = "rope-yarn",
        /// The Llama 3 scaling.
        RopeLlama3 = "rope-llama3",
        /// LongRoPE; needs `regime`.
        RopeLongrope = "rope-longrope",
        /// Multimodal rotary.
        Mrope = "mrope",
    }
);

/// A codec number of the "KVSP Codecs" registry; never 0 or 65535.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Codec(u16);

impl Codec {
    /// 0x0001: the elements as they are.
    pub const RAW: Self = Self(1);
    /// 0x0002: lossless, for two-octet element types (profile section 9).
    pub const SPLIT_ZSTD: Self = Self(2);

    /// The codec of this number; `None` for 0 and 65535, which are invalid.
    #[must_use]
    pub const fn new(number: u16) -> Option<Self> {
        match number {
            0 | 0xFFFF => None,
            _ => Some(Self(number)),
        }
    }

    /// The registered number.
    #[must_use]
    pub const fn number(self) -> u16 {
        self.0
    }

    /// Whether the number is in the private-use range 0xFF00–0xFFFE, whose sections are opaque.
    #[must_use]
    pub const fn is_private(self) -> bool {
        self.0 >= 0xFF00
    }

    /// Whether a holder stores containers of this codec: registered or private.
    #[must_use]
    pub const fn is_known(self) -> bool {
        matches!(self.0, 1 | 2) || self.is_private()
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::RAW => f.pad("raw"),
            Self::SPLIT_ZSTD => f.pad("split-zstd"),
            Self(n) => write!(f, "{n:#06x}"),
        }
    }
}

impl Serialize for Codec {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u16(self.0)
    }
}
