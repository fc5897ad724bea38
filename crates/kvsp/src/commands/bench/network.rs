//! A loopback of our own with congestion control that does not pace.
//!
//! A pacing congestion control halves what loopback carries, and what a service's sockets use is the system's
//! choice. So where the system allows it, this process moves into a network of its own before it starts
//! anything, and chooses there: for the limits, the services and the peers alike, and for nobody else.

use std::fs;
use std::os::fd::AsRawFd as _;

use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};

use super::error::BenchError;

const CONGESTION: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
/// Does not pace, and every network has it.
const UNPACED: &str = "reno";

/// What the contestants are connected by.
#[derive(Debug, Clone)]
pub(super) struct Network {
    /// Whether it is this process's own.
    own: bool,
    /// The congestion control of all sockets.
    congestion: String,
}

impl Network {
    /// Takes this process into a network of its own, where it may; else it stays in the system's. Call it
    /// before there is another thread.
    ///
    /// # Errors
    /// The new network has no loopback, and there is no way back to the system's.
    pub(super) fn enter() -> Result<Self, BenchError> {
        let apart = unshare(CloneFlags::CLONE_NEWNET)
            .or_else(|_| unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET));
        let own = apart.is_ok();
        if own {
            raise_loopback().map_err(BenchError::system("a loopback of its own"))?;
            // Where this fails the note tells what the congestion control is all the same.
            let _ = fs::write(CONGESTION, UNPACED);
        }
        let congestion = fs::read_to_string(CONGESTION).unwrap_or_default();
        Ok(Self { own, congestion: congestion.trim().to_owned() })
    }

    /// For the notes of a bench.
    pub(super) fn note(&self) -> String {
        let whose = if self.own { "a loopback of its own" } else { "the system's loopback" };
        let congestion = if self.congestion.is_empty() { "unknown" } else { &self.congestion };
        let paced = if congestion == "bbr" { ", which paces: every figure over TCP is too low" } else { "" };
        format!("every connection is over {whose} with congestion control {congestion}{paced}")
    }
}

/// Sets `lo` up, which in a new network is down.
fn raise_loopback() -> Result<(), nix::Error> {
    let netlink =
        socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRoute)?;
    sendto(netlink.as_raw_fd(), &set_up_message(), &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
    let mut answer = [0; 64];
    let octets = recv(netlink.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    // NLMSG_ERROR with error 0 after the header of 16 octets is the acknowledgement.
    match answer[..octets].get(16..20) {
        Some([0, 0, 0, 0]) => Ok(()),
        _ => Err(nix::Error::EIO),
    }
}

/// RTM_NEWLINK for interface 1, which `lo` is in every network: rtnetlink(7).
fn set_up_message() -> [u8; 32] {
    const RTM_NEWLINK: u16 = 16;
    const REQUEST_AND_ACK: u16 = 1 | 4;
    const LOOPBACK: u32 = 1;
    const IFF_UP: u32 = 1;
    let mut message = [0; 32];
    message[0..4].copy_from_slice(&32_u32.to_ne_bytes());
    message[4..6].copy_from_slice(&RTM_NEWLINK.to_ne_bytes());
    message[6..8].copy_from_slice(&REQUEST_AND_ACK.to_ne_bytes());
    // Family and type of the interface stay 0: any.
    message[20..24].copy_from_slice(&LOOPBACK.to_ne_bytes());
    message[24..28].copy_from_slice(&IFF_UP.to_ne_bytes());
    message[28..32].copy_from_slice(&IFF_UP.to_ne_bytes());
    message
}
