//! Principals and what they may do (profile section 4).

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

use kvsp_proto::id::ScopeId;
use kvsp_proto::problem::{Problem, ProblemType};
use kvsp_proto::uri::HolderUri;

/// What a principal is in the deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Stores and serves blocks.
    Holder,
    /// Computes, and serves its blocks.
    Instance,
    /// Places requests and directs instances.
    Controller,
    /// Reads blocks and asks for placements.
    Client,
    /// Operates the deployment.
    Admin,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 5] = [Self::Holder, Self::Instance, Self::Controller, Self::Client, Self::Admin];

    /// The role's name in credentials and policies.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Holder => "holder",
            Self::Instance => "instance",
            Self::Controller => "controller",
            Self::Client => "client",
            Self::Admin => "admin",
        }
    }
}

/// A set that may be everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Grant<T> {
    /// Every member.
    All,
    /// These members.
    Only(BTreeSet<T>),
}

impl<T: Ord> Grant<T> {
    /// Whether a member is granted.
    #[must_use]
    pub fn covers(&self, member: &T) -> bool {
        match self {
            Self::All => true,
            Self::Only(members) => members.contains(member),
        }
    }
}

/// An authenticated caller with its grants; clones share them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal(Arc<Grants>);

#[derive(Debug, PartialEq, Eq)]
struct Grants {
    name: String,
    roles: BTreeSet<Role>,
    scopes: Grant<ScopeId>,
    on_behalf_of: Grant<HolderUri>,
}

impl Principal {
    /// A principal with these grants. `name` is its URI; it acts for the holder of that URI and for those
    /// in `on_behalf_of`.
    pub fn new(
        name: impl Into<String>,
        roles: impl IntoIterator<Item = Role>,
        scopes: Grant<ScopeId>,
        on_behalf_of: Grant<HolderUri>,
    ) -> Self {
        let roles = roles.into_iter().collect();
        Self(Arc::new(Grants { name: name.into(), roles, scopes, on_behalf_of }))
    }

    /// The one principal of development mode: every right.
    #[must_use]
    pub fn development() -> Self {
        static DEVELOPMENT: LazyLock<Principal> =
            LazyLock::new(|| Principal::new("development", Role::ALL, Grant::All, Grant::All));
        DEVELOPMENT.clone()
    }

    /// A principal without any right.
    #[must_use]
    pub fn anonymous() -> Self {
        Self::new("anonymous", [], Grant::Only(BTreeSet::new()), Grant::Only(BTreeSet::new()))
    }

    /// The name, a normalised URI outside development mode. Quotas and leases belong to it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Whether the principal has a role.
    #[must_use]
    pub fn has_role(&self, role: Role) -> bool {
        self.0.roles.contains(&role)
    }

    /// Whether the principal has a scope.
    #[must_use]
    pub fn has_scope(&self, scope: ScopeId) -> bool {
        self.0.scopes.covers(&scope)
    }

    /// Whether the principal is this holder or instance, or its delegate.
    #[must_use]
    pub fn acts_for(&self, holder: &HolderUri) -> bool {
        self.is_itself(holder) || self.0.on_behalf_of.covers(holder)
    }

    /// Whether the principal is this holder or instance itself, not a delegate. In development mode, where
    /// principals cannot be told apart, everyone is.
    #[must_use]
    pub fn is_itself(&self, holder: &HolderUri) -> bool {
        self.0.name == holder.as_str() || self.0.on_behalf_of == Grant::All
    }

    /// Requires one of `roles`.
    ///
    /// # Errors
    /// 403 `about:blank`.
    pub fn require_role(&self, roles: &[Role]) -> Result<(), Problem> {
        if roles.iter().any(|role| self.has_role(*role)) {
            return Ok(());
        }
        let names: Vec<&str> = roles.iter().map(|role| role.as_str()).collect();
        Err(Problem::blank(403, format!("this needs the role {}", names.join(" or "))))
    }

    /// Requires a scope.
    ///
    /// # Errors
    /// `kvsp-scope-denied`, the same whether or not anything exists there.
    pub fn require_scope(&self, scope: ScopeId) -> Result<(), Problem> {
        if self.has_scope(scope) {
            return Ok(());
        }
        Err(Problem::new(ProblemType::ScopeDenied, "the principal does not have this scope"))
    }

    /// Requires to be a holder or instance, or its delegate.
    ///
    /// # Errors
    /// `kvsp-not-holder`.
    pub fn require_holder(&self, holder: &HolderUri) -> Result<(), Problem> {
        if self.acts_for(holder) {
            return Ok(());
        }
        Err(Problem::new(ProblemType::NotHolder, "the principal is not the one named, nor its delegate"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(text: &str) -> HolderUri {
        text.parse().unwrap()
    }

    #[test]
    fn grants_decide() {
        let (own, other, third) = (holder("https://a/"), holder("https://b/"), holder("https://c/"));
        let scope = ScopeId([1; 16]);
        let principal = Principal::new(
            "https://a/",
            [Role::Holder],
            Grant::Only([scope].into()),
            Grant::Only([other.clone()].into()),
        );
        assert_eq!(principal.require_scope(scope), Ok(()));
        let denied = principal.require_scope(ScopeId([2; 16])).unwrap_err();
        assert_eq!(denied.problem_type(), Some(ProblemType::ScopeDenied));
        assert_eq!(principal.require_holder(&own), Ok(()));
        assert_eq!(principal.require_holder(&other), Ok(()));
        assert!(principal.is_itself(&own) && !principal.is_itself(&other));
        let denied = principal.require_holder(&third).unwrap_err();
        assert_eq!(denied.problem_type(), Some(ProblemType::NotHolder));
        assert_eq!(principal.require_role(&[Role::Instance, Role::Holder]), Ok(()));
        assert_eq!(principal.require_role(&[Role::Admin]).unwrap_err().status(), 403);
    }

    #[test]
    fn development_may_everything_and_anonymous_nothing() {
        let (all, none) = (Principal::development(), Principal::anonymous());
        for role in Role::ALL {
            assert!(all.has_role(role) && !none.has_role(role));
        }
        assert!(all.has_scope(ScopeId([9; 16])) && !none.has_scope(ScopeId([9; 16])));
        let holder = holder("https://h/");
        assert!(all.acts_for(&holder) && all.is_itself(&holder) && !none.acts_for(&holder));
    }
}
