//! Tokens of callers: made for one session, found again by their hash, revoked with it.
//!
//! A token is 32 random bytes. What is stored is the SHA-256 of the store's id and the token, as a
//! part of the session's status and as a secondary key, so that both go with the record in one
//! commit, and a token of another store opens nothing here.

use rand::TryRng as _;

use super::{ATTEMPTS_MAX, Admission, Refusal, WriteOptions, Writer};
use crate::api::agent::Permissions;
use crate::api::field::FieldErrorReason::FieldValueInvalid;
use crate::api::session::{ControlMode, Provider, Toolset};
use crate::api::token::{SecretToken, TOKEN_BYTES, TOKENS_MAX, id_of};
use crate::api::{
    CallerToken, Dur, FieldError, FieldPath, Kind, Name, Namespace, Session, SessionSpec, Time, Uid,
};
use crate::store::keys;
use crate::store::records::Txn;

/// What a token is made for.
#[derive(Clone, Debug, Default, PartialEq, serde::Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct TokenRequest {
    /// The toolsets that it opens; `spawn` if none is named.
    pub toolsets: Vec<Toolset>,
    /// What it may do to other sessions.
    pub control_mode: ControlMode,
    /// From when on it is refused; never, if neither this nor `expiresIn` says.
    pub expires_at: Option<Time>,
    /// How long from now on it is taken.
    pub expires_in: Option<Dur>,
    /// What its session may do. Of a session that is there already, it must be the same.
    pub permissions: Option<Permissions>,
    /// The workspace of its session, likewise.
    pub workspace: Option<String>,
    /// The directory of its session, likewise.
    pub cwd: Option<String>,
}

/// A token that was just made. Not `Debug`: it must not get into a log.
pub struct NewToken {
    /// The session that it belongs to.
    pub session: Session,
    /// What is stored of it.
    pub stored: CallerToken,
    /// The token itself; it cannot be had again.
    pub token: String,
}

/// Who calls: the session of a verified token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Its uid.
    pub session: Uid,
    /// Its name.
    pub name: Name,
    /// Its namespace.
    pub namespace: Namespace,
}

/// A verified token.
#[derive(Clone, Debug, PartialEq)]
pub struct Bearer {
    /// Whose it is.
    pub caller: Caller,
    /// Names the token; for counting its use.
    pub id: String,
    /// The toolsets that it opens.
    pub toolsets: Vec<Toolset>,
    /// What it may do to other sessions.
    pub control_mode: ControlMode,
    /// Whether the session is not deleted, not asked to stop and not ended.
    pub is_live: bool,
}

impl Admission {
    /// Makes a token, and its session if that is not there: an external one that may delegate.
    ///
    /// # Errors
    ///
    /// [`Refusal`]; a conflict if the session is there with another workspace, directory or
    /// permissions than asked for, or is ending.
    pub async fn create_token(
        &self,
        namespace: &Namespace,
        session: &Name,
        request: &TokenRequest,
    ) -> Result<NewToken, Refusal> {
        let now = self.clock.now().time;
        let expires_at = expiry(request, session, now)?;
        let token = random_token()?;
        let sha256 = self.hash(&token).await?;
        let id = id_of(&sha256);
        let toolsets = match request.toolsets.as_slice() {
            [] => vec![Toolset::Spawn],
            named => named
                .iter()
                .copied()
                .collect::<std::collections::BTreeSet<_>>()
                .into_iter()
                .collect(),
        };
        let stored = CallerToken {
            id,
            sha256,
            toolsets,
            control_mode: request.control_mode,
            incarnation: None,
            created_at: now,
            expires_at,
        };
        for _ in 0..ATTEMPTS_MAX {
            let old = self.caller_session(namespace, session, request).await?;
            expect_same(&old, request)?;
            let mut new = old.clone();
            // What has expired opens nothing: its place is free.
            new.status.tokens.retain(|token| token.expires_at.is_none_or(|at| at > now));
            if new.status.tokens.len() >= TOKENS_MAX {
                return Err(Refusal::TooManyRequests {
                    kind: Kind::Session,
                    name: session.clone(),
                    why: format!(
                        "the session {session} has {TOKENS_MAX} tokens, the most that it may have; \
                         revoke one"
                    ),
                });
            }
            new.status.tokens.push(stored.clone());
            let txn = Txn::new().update(&old, &new);
            // A commit of unknown outcome is read back by what users write, and a token is none of
            // that: whether it is there has to be looked at.
            if self.commit_new(txn, &mut new).await?.is_done()
                && new.status.tokens.contains(&stored)
            {
                return Ok(NewToken { session: new, stored, token });
            }
        }
        Err(Refusal::modified(Kind::Session, session))
    }

    /// Ends a token at once; tells what it was, none if the session has no token of this id.
    ///
    /// # Errors
    ///
    /// [`Refusal`]; not found if there is no such session.
    pub async fn revoke_token(
        &self,
        namespace: &Namespace,
        session: &Name,
        id: &str,
    ) -> Result<Option<CallerToken>, Refusal> {
        for _ in 0..ATTEMPTS_MAX {
            let old = self.existing::<SessionSpec>(namespace, session).await?;
            let Some(index) = old.status.tokens.iter().position(|token| token.id == id) else {
                return Ok(None);
            };
            let mut new = old.clone();
            let revoked = new.status.tokens.remove(index);
            let txn = Txn::new().update(&old, &new);
            if self.commit_new(txn, &mut new).await?.is_done()
                && !new.status.tokens.contains(&revoked)
            {
                return Ok(Some(revoked));
            }
        }
        Err(Refusal::modified(Kind::Session, session))
    }

    /// Whose token this is; none if it is nobody's, was revoked or has expired.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn bearer(&self, token: &str) -> Result<Option<Bearer>, Refusal> {
        // What cannot be one of ours costs no look into the store.
        if !SecretToken::is_shaped(token) {
            return Ok(None);
        }
        let sha256 = self.hash(token).await?;
        let session = self.records.pointed_at_by::<SessionSpec>(&keys::token(&sha256)).await?;
        let Some(session) = session else { return Ok(None) };
        let now = self.clock.now().time;
        let is_valid = |stored: &&CallerToken| {
            stored.sha256 == sha256
                && stored.expires_at.is_none_or(|at| at > now)
                && stored.incarnation.is_none_or(|run| run == session.status.incarnation)
        };
        let Some(stored) = session.status.tokens.iter().find(is_valid) else { return Ok(None) };
        Ok(Some(Bearer {
            caller: Caller {
                session: session.metadata.uid.clone(),
                name: session.metadata.name.clone(),
                namespace: session.metadata.namespace.clone(),
            },
            id: stored.id.clone(),
            toolsets: stored.toolsets.clone(),
            control_mode: stored.control_mode,
            is_live: super::session::why_not_live(&session).is_none(),
        }))
    }

    /// The session that a token is for, made if it is not there.
    async fn caller_session(
        &self,
        namespace: &Namespace,
        name: &Name,
        request: &TokenRequest,
    ) -> Result<Session, Refusal> {
        if let Some(found) = self.records.get::<SessionSpec>(namespace, name).await? {
            return Ok(found);
        }
        let mut spec = serde_json::json!({
            "provider": "external",
            "delegation": {"enabled": true},
        });
        let fields = [
            ("workspace", request.workspace.as_ref().map(|name| serde_json::json!(name))),
            ("cwd", request.cwd.as_ref().map(|path| serde_json::json!(path))),
            ("permissions", request.permissions.map(|mode| serde_json::json!(mode))),
        ];
        for (field, value) in fields {
            if let Some(value) = value {
                spec[field] = value;
            }
        }
        let body = serde_json::json!({"metadata": {"name": name.as_str()}, "spec": spec});
        let options = WriteOptions::default();
        let made =
            self.create(Kind::Session, Some(namespace), body, &options, &Writer::Operator).await;
        match made {
            // Somebody else made it in between: that one is as good.
            Ok(_) | Err(Refusal::AlreadyExists { .. }) => {
                self.existing::<SessionSpec>(namespace, name).await
            }
            Err(refusal) => Err(refusal),
        }
    }

    async fn hash(&self, token: &str) -> Result<String, Refusal> {
        let store_id = self.records.store().identity().await?;
        Ok(SecretToken::sha256(&store_id, token))
    }
}

fn random_token() -> Result<String, Refusal> {
    let mut bytes = [0_u8; TOKEN_BYTES];
    rand::rngs::SysRng.try_fill_bytes(&mut bytes).map_err(|error| Refusal::Internal {
        why: format!("the system gives no random bytes: {error}"),
    })?;
    Ok(SecretToken::new(&bytes).expose().to_owned())
}

/// When a new token ends.
fn expiry(request: &TokenRequest, session: &Name, now: Time) -> Result<Option<Time>, Refusal> {
    let wrong = |field: &str, message: &str| {
        let (field, message) = (FieldPath::new(field), message.to_owned());
        let error = FieldError { field, reason: FieldValueInvalid, message };
        Err(Refusal::field(Kind::Session, session, error))
    };
    match (request.expires_at, request.expires_in) {
        (Some(_), Some(_)) => wrong("expiresIn", "set at most one of expiresAt and expiresIn"),
        (Some(at), None) if at <= now => wrong("expiresAt", "lies in the past"),
        (None, Some(lifetime)) if lifetime.is_zero() => {
            wrong("expiresIn", "must be longer than 0; leave it out for a token without an end")
        }
        (None, Some(lifetime)) => Ok(Some(now.plus(lifetime.get()))),
        (at, None) => Ok(at),
    }
}

/// A token opens what its session is; it cannot make another session of it.
fn expect_same(session: &Session, request: &TokenRequest) -> Result<(), Refusal> {
    let name = &session.metadata.name;
    let conflict =
        |why: String| Err(Refusal::Conflict { kind: Kind::Session, name: name.clone(), why });
    if let Some(why) = super::session::why_not_live(session) {
        return conflict(format!("it {why}"));
    }
    let spec = &session.spec;
    if spec.provider != Provider::External {
        return conflict(
            "the daemon runs it and gives it a token itself; name a session of your own".to_owned(),
        );
    }
    let differs = [
        ("workspace", request.workspace.is_some() && request.workspace != spec.workspace),
        ("cwd", request.cwd.is_some() && request.cwd != spec.cwd),
        ("permissions", request.permissions.is_some() && request.permissions != spec.permissions),
    ];
    match differs.into_iter().find(|(_, differs)| *differs) {
        Some((field, _)) => conflict(format!(
            "it is there with another {field}, which belongs to the session and not to the token; \
             leave it out, or use another session"
        )),
        None => Ok(()),
    }
}
