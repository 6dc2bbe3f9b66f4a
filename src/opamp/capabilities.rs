//! The two capability bit masks of the protocol.

use super::messages::AgentCapabilities as Bit;

/// What an agent says it is able to do. Unknown bits are kept as they came and change nothing (INT-05).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct AgentCapabilities(u64);

impl AgentCapabilities {
    /// Takes the field as it came.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The field as it came.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Whether the agent has this capability.
    #[must_use]
    pub const fn has(self, bit: Bit) -> bool {
        self.0 & (bit as u64) != 0
    }

    /// Names for people, lowest bit first; unknown ones as `Bit24`.
    #[must_use]
    pub fn names(self) -> Vec<String> {
        (0..64).filter(|bit| self.0 & (1 << bit) != 0).map(name_of_bit).collect()
    }
}

fn name_of_bit(bit: u32) -> String {
    i32::try_from(1_u64 << bit).ok().and_then(|value| Bit::try_from(value).ok()).map_or_else(
        || format!("Bit{bit}"),
        |known| known.as_str_name().trim_start_matches("AgentCapabilities_").into(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_bits_are_kept_and_named_by_their_number() {
        let capabilities = AgentCapabilities::from_bits(0x0100_0003);
        assert_eq!(capabilities.names(), ["ReportsStatus", "AcceptsRemoteConfig", "Bit24"]);
        assert!(capabilities.has(Bit::AcceptsRemoteConfig));
        assert!(!capabilities.has(Bit::ReportsHealth));
    }
}
