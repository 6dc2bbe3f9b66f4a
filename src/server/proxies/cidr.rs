//! Ranges of addresses (RFC 4632, RFC 4291 §2.3).

use std::{fmt, net::IpAddr, str::FromStr};

/// A range of addresses, such as `10.0.0.0/8`, `2001:db8::/32` or a single address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Cidr {
    network: IpAddr,
    prefix: u8,
}

/// Why a text is no range of addresses.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum CidrError {
    /// What stands before the slash, or all of it.
    #[error("{0:?} is no IP address")]
    Address(String),
    /// What stands behind it.
    #[error("the length of the prefix is a number from 1 to {0}; 0 would be every address there is")]
    Prefix(u8),
    /// Probably mistyped.
    #[error("{0} is not the first address of its range, which is {1}")]
    HostBits(IpAddr, Cidr),
}

impl Cidr {
    /// Whether an address lies in the range. One of IPv4 that is written as one of IPv6 is one of IPv4.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.network.is_ipv4() && masked(address, self.prefix) == self.network
    }
}

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Self, CidrError> {
        let (address, prefix) = text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
        let address: IpAddr = address.parse().map_err(|_| CidrError::Address(address.to_owned()))?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix.map(str::parse) {
            None => bits,
            Some(Ok(prefix)) if (1..=bits).contains(&prefix) => prefix,
            Some(_) => return Err(CidrError::Prefix(bits)),
        };
        let range = Self { network: masked(address, prefix), prefix };
        if range.network == address { Ok(range) } else { Err(CidrError::HostBits(address, range)) }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.network, self.prefix)
    }
}

/// The address with all bits behind the prefix cleared.
fn masked(address: IpAddr, prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32_u32.saturating_sub(prefix.into())).unwrap_or_default();
            IpAddr::V4((address.to_bits() & mask).into())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128_u32.saturating_sub(prefix.into())).unwrap_or_default();
            IpAddr::V6((address.to_bits() & mask).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_holds_what_begins_with_its_prefix() {
        for (range, address, expected) in [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.0", false),
            ("10.0.0.0/8", "::ffff:10.1.2.3", true),
            ("10.0.0.0/8", "::10.1.2.3", false),
            ("192.0.2.7", "192.0.2.7", true),
            ("192.0.2.7", "192.0.2.6", false),
            ("192.0.2.6/31", "192.0.2.7", true),
            ("128.0.0.0/1", "200.0.0.1", true),
            ("128.0.0.0/1", "127.255.255.255", false),
            ("2001:db8::/32", "2001:db8:ffff::1", true),
            ("2001:db8::/32", "2001:db9::1", false),
            ("2001:db8::1", "2001:db8::1", true),
            ("2001:db8::1", "2001:db8::2", false),
            ("8000::/1", "192.0.2.1", false),
        ] {
            let range: Cidr = range.parse().unwrap();
            assert_eq!(range.contains(address.parse().unwrap()), expected, "{range} {address}");
        }
    }

    #[test]
    fn what_is_no_range_is_told_why() {
        for (text, expected) in [
            ("", "\"\" is no IP address"),
            ("proxy", "\"proxy\" is no IP address"),
            ("10.0.0/8", "\"10.0.0\" is no IP address"),
            ("10.0.0.0/", "the length of the prefix is a number from 1 to 32; 0 would be every address there is"),
            ("0.0.0.0/0", "the length of the prefix is a number from 1 to 32; 0 would be every address there is"),
            ("10.0.0.0/33", "the length of the prefix is a number from 1 to 32; 0 would be every address there is"),
            ("::/129", "the length of the prefix is a number from 1 to 128; 0 would be every address there is"),
            ("10.0.0.1/8", "10.0.0.1 is not the first address of its range, which is 10.0.0.0/8"),
        ] {
            assert_eq!(text.parse::<Cidr>().unwrap_err().to_string(), expected, "{text}");
        }
    }
}
