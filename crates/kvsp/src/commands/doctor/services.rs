//! Checks of services: each answers, with the role that it is taken for.

use kvsp_client::Client;
use kvsp_proto::message::ServiceRoot;
use kvsp_proto::uri::BaseUri;

use super::{Check, Verdict};

/// The version of the profile that this program speaks.
const PROFILE: u32 = 1;

/// One check a service.
pub(super) fn checks(client: &Client, services: &[(&str, BaseUri)]) -> Vec<Check> {
    if services.is_empty() {
        return Vec::new();
    }
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Err(error) => vec![Check::new("runtime", Verdict::Wrong, error.to_string())],
        Ok(runtime) => runtime.block_on(async {
            let mut checks = Vec::with_capacity(services.len());
            for (role, base) in services {
                checks.push(match client.root(base).await {
                    Ok(root) => judge(role, base, &root),
                    Err(error) => Check::new(*role, Verdict::Wrong, format!("{base}: {error}")),
                });
            }
            checks
        }),
    }
}

fn judge(role: &str, base: &BaseUri, root: &ServiceRoot) -> Check {
    let roles = root.roles.join(", ");
    if root.kvsp != PROFILE {
        let detail = format!("{base} speaks version {} of the profile, not {PROFILE}", root.kvsp);
        return Check::new(role, Verdict::Wrong, detail);
    }
    if !root.roles.iter().any(|own| own == role) {
        return Check::new(role, Verdict::Wrong, format!("{base} is no {role}; its roles are: {roles}"));
    }
    Check::new(role, Verdict::Ok, format!("{base} answers as {roles}"))
}

#[cfg(test)]
mod tests {
    use kvsp_proto::message::Limits;

    use super::*;

    #[test]
    fn the_role_and_the_version_must_be_right() {
        let base: BaseUri = "http://127.0.0.1:1/kvsp/".parse().unwrap();
        let mut root = ServiceRoot {
            kvsp: 1,
            roles: vec!["holder".into(), "instance".into()],
            extensions: vec![],
            limits: Limits::default(),
        };
        assert_eq!(judge("instance", &base, &root).verdict, Verdict::Ok);
        assert_eq!(judge("index", &base, &root).verdict, Verdict::Wrong);
        root.kvsp = 2;
        assert_eq!(judge("instance", &base, &root).verdict, Verdict::Wrong);
    }
}
