//! Where a controller keeps its sessions when nobody says.

use std::path::PathBuf;

use super::args::RoleName;

/// `$XDG_STATE_HOME/kvsp/controller-PORT`, or the same below `~/.local/state`, so that a controller that is
/// started again on its port finds its sessions. `None` for a port that is not fixed, for a role without a
/// controller, and for a user without a home: then the folder is temporary.
pub(super) fn default_folder(role: RoleName, listen_port: u16) -> Option<PathBuf> {
    let port = controller_port(role, listen_port)?;
    // The base directory specification has relative paths ignored.
    let set = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")))?;
    Some(base.join("kvsp").join(format!("controller-{port}")))
}

/// The controller is the third of the services that `all` starts on consecutive ports.
fn controller_port(role: RoleName, listen_port: u16) -> Option<u16> {
    match (role, listen_port) {
        (_, 0) => None,
        (RoleName::Controller, port) => Some(port),
        (RoleName::All, port) => port.checked_add(2),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_fixed_port_of_a_controller_names_a_folder() {
        assert_eq!(controller_port(RoleName::Controller, 7703), Some(7703));
        assert_eq!(controller_port(RoleName::All, 7701), Some(7703));
        assert_eq!(controller_port(RoleName::All, u16::MAX), None);
        assert_eq!(controller_port(RoleName::Controller, 0), None);
        assert_eq!(controller_port(RoleName::Index, 7703), None);
    }
}
