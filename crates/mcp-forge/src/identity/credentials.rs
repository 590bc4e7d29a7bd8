//! Everything that lets a caller in over a network: the file of tokens, and tokens that others issue.

use super::{Caller, OAuth, Refusal, Tokens, TokensError};

/// What callers are known by.
#[derive(Debug)]
pub struct Credentials {
    /// The tokens of the operator's file.
    pub tokens: Tokens,
    /// Those that others issue, if somebody does.
    pub oauth: Option<OAuth>,
}

/// A token lets nobody in.
#[derive(Debug, thiserror::Error)]
pub enum NotLetIn {
    /// It is nobody's.
    #[error("the token is none that this server knows")]
    Unknown,
    /// It is an access token of somebody else's, and is refused.
    #[error("the access token is refused: {0}")]
    Refused(#[from] Refusal),
    /// The file of tokens cannot be read, so nobody is let in.
    #[error(transparent)]
    Tokens(#[from] TokensError),
}

impl Credentials {
    /// Whose a token is, and what it is good for.
    ///
    /// # Errors
    ///
    /// [`NotLetIn`].
    pub async fn caller(&self, token: &str) -> Result<Caller, NotLetIn> {
        if let Some(caller) = self.tokens.caller(token)? {
            return Ok(caller);
        }
        match &self.oauth {
            Some(oauth) if is_jwt(token) => Ok(oauth.caller(token).await?),
            _ => Err(NotLetIn::Unknown),
        }
    }
}

/// Whether it looks as a signed JSON Web Token does: three parts. Nothing of it is decoded.
fn is_jwt(token: &str) -> bool {
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    token.bytes().filter(|byte| *byte == b'.').count() == 2 && token.bytes().all(is_fit)
}
