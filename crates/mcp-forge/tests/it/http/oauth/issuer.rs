//! An issuer of tokens: its keys, the address at which it publishes them, and what it signs.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use aws_lc_rs::{
    hmac,
    rand::SystemRandom,
    rsa::KeySize,
    signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair,
        Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RSA_PSS_SHA256, RsaEncoding, RsaKeyPair,
    },
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Value, json};

/// A private key, with the name that it is published under.
pub(super) struct Key {
    pub(super) id: String,
    pub(super) kind: Kind,
}

pub(super) enum Kind {
    Rsa(RsaKeyPair),
    P256(EcdsaKeyPair),
    P384(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

impl Key {
    pub(super) fn rsa(id: &str) -> Self {
        Self::new(
            id,
            Kind::Rsa(RsaKeyPair::generate(KeySize::Rsa2048).unwrap()),
        )
    }

    pub(super) fn p256(id: &str) -> Self {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING);
        Self::new(id, Kind::P256(pair.unwrap()))
    }

    pub(super) fn p384(id: &str) -> Self {
        let pair = EcdsaKeyPair::generate(&ECDSA_P384_SHA384_FIXED_SIGNING);
        Self::new(id, Kind::P384(pair.unwrap()))
    }

    pub(super) fn ed25519(id: &str) -> Self {
        Self::new(id, Kind::Ed25519(Ed25519KeyPair::generate().unwrap()))
    }

    fn new(id: &str, kind: Kind) -> Self {
        Self {
            id: id.to_owned(),
            kind,
        }
    }

    /// The algorithm that it signs with, unless it is told another.
    pub(super) fn algorithm(&self) -> &'static str {
        match self.kind {
            Kind::Rsa(_) => "RS256",
            Kind::P256(_) => "ES256",
            Kind::P384(_) => "ES384",
            Kind::Ed25519(_) => "EdDSA",
        }
    }

    /// The public half, as a JSON Web Key.
    pub(super) fn public(&self) -> Value {
        let mut key = match &self.kind {
            Kind::Rsa(pair) => json!({
                "kty": "RSA",
                "n": encode(pair.public_key().modulus().big_endian_without_leading_zero()),
                "e": encode(pair.public_key().exponent().big_endian_without_leading_zero()),
            }),
            Kind::P256(pair) => point("P-256", pair),
            Kind::P384(pair) => point("P-384", pair),
            Kind::Ed25519(pair) => {
                json!({"kty": "OKP", "crv": "Ed25519", "x": encode(pair.public_key())})
            }
        };
        key["kid"] = self.id.as_str().into();
        key["use"] = "sig".into();
        key
    }

    /// Signs a message; an RSA key as `algorithm` has it.
    pub(super) fn sign(&self, algorithm: &str, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match &self.kind {
            Kind::Rsa(pair) => {
                let padding: &'static dyn RsaEncoding = match algorithm {
                    "PS256" => &RSA_PSS_SHA256,
                    _ => &RSA_PKCS1_SHA256,
                };
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(padding, &random, message, &mut signature)
                    .unwrap();
                signature
            }
            Kind::P256(pair) | Kind::P384(pair) => {
                pair.sign(&random, message).unwrap().as_ref().to_vec()
            }
            Kind::Ed25519(pair) => pair.sign(message).as_ref().to_vec(),
        }
    }

    /// A token with whatever is given, signed by this key.
    pub(super) fn token(&self, header: &Value, claims: &Value) -> String {
        let message = unsigned(header, claims);
        let algorithm = header["alg"].as_str().unwrap_or_default();
        let signature = self.sign(algorithm, message.as_bytes());
        format!("{message}.{}", encode(signature))
    }

    /// The header of its ordinary tokens.
    pub(super) fn header(&self) -> Value {
        json!({"alg": self.algorithm(), "typ": "at+jwt", "kid": self.id})
    }
}

fn point(curve: &str, pair: &EcdsaKeyPair) -> Value {
    let point = pair.public_key().as_ref();
    let (x, y) = point[1..].split_at((point.len() - 1) / 2);
    json!({"kty": "EC", "crv": curve, "x": encode(x), "y": encode(y)})
}

pub(super) fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// The two parts that are signed.
pub(super) fn unsigned(header: &Value, claims: &Value) -> String {
    format!(
        "{}.{}",
        encode(header.to_string()),
        encode(claims.to_string())
    )
}

/// A signature by a shared secret.
pub(super) fn hs256(secret: &[u8], message: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    encode(hmac::sign(&key, message.as_bytes()))
}

pub(super) fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs()
}

/// What an issuer answers when it is asked for its keys.
#[derive(Debug, Clone)]
pub(super) enum Answer {
    Keys(Value),
    /// Status, further header lines, body.
    Other(u16, String, String),
    /// Hangs up.
    Nothing,
}

/// Someone who issues tokens, and publishes keys at an address of this machine.
pub(super) struct Issuer {
    pub(super) keys: Vec<Key>,
    address: SocketAddr,
    answer: Arc<Mutex<Answer>>,
    asked: Arc<AtomicUsize>,
}

impl Issuer {
    /// With these keys, all published.
    pub(super) fn with(keys: Vec<Key>) -> Self {
        Self::at("127.0.0.1:0".parse().unwrap(), keys)
    }

    /// The same at an address.
    pub(super) fn at(address: SocketAddr, keys: Vec<Key>) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let published: Vec<Value> = keys.iter().map(Key::public).collect();
        let answer = Arc::new(Mutex::new(Answer::Keys(set_of(&published))));
        let asked = Arc::new(AtomicUsize::new(0));
        let (said, counted) = (Arc::clone(&answer), Arc::clone(&asked));
        // It ends with the tests.
        thread::spawn(move || {
            for stream in listener.incoming() {
                counted.fetch_add(1, Ordering::SeqCst);
                answer_one(stream.unwrap(), &said.lock().unwrap().clone());
            }
        });
        Self {
            keys,
            address,
            answer,
            asked,
        }
    }

    /// With one key, of the kind that is quickly made.
    pub(super) fn new() -> Self {
        Self::with(vec![Key::p256("first")])
    }

    /// What it calls itself.
    pub(super) fn name(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(super) fn jwks_url(&self) -> String {
        format!("http://{}/jwks", self.address)
    }

    /// How often somebody came, whatever for.
    pub(super) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    pub(super) fn publish(&self, keys: &[&Key]) {
        let published: Vec<Value> = keys.iter().map(|key| key.public()).collect();
        self.answer(Answer::Keys(set_of(&published)));
    }

    pub(super) fn answer(&self, answer: Answer) {
        *self.answer.lock().unwrap() = answer;
    }

    pub(super) fn key(&self) -> &Key {
        &self.keys[0]
    }

    /// What its tokens say: valid for five minutes, of `ada`, to run code.
    pub(super) fn claims(&self) -> Value {
        json!({
            "iss": self.name(), "aud": super::RESOURCE, "sub": "ada", "scope": "openid mcp:run",
            "iat": now(), "exp": now() + 300, "client_id": "test", "jti": "1",
        })
    }

    /// Such a token with some claims as they are given; `null` takes one away.
    pub(super) fn token(&self, claims: &Value) -> String {
        self.key()
            .token(&self.key().header(), &self.with_claims(claims))
    }

    pub(super) fn with_claims(&self, changes: &Value) -> Value {
        with(self.claims(), changes)
    }

    pub(super) fn header(&self, changes: &Value) -> Value {
        with(self.key().header(), changes)
    }
}

fn with(mut object: Value, changes: &Value) -> Value {
    for (name, value) in changes.as_object().unwrap() {
        if value.is_null() {
            object.as_object_mut().unwrap().remove(name);
        } else {
            object[name] = value.clone();
        }
    }
    object
}

pub(super) fn set_of(keys: &[Value]) -> Value {
    json!({"keys": keys})
}

fn answer_one(mut stream: TcpStream, answer: &Answer) {
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return,
        }
    }
    let (status, headers, body) = match answer {
        Answer::Keys(keys) => (200, String::new(), keys.to_string()),
        Answer::Other(status, headers, body) => (*status, headers.clone(), body.clone()),
        Answer::Nothing => return,
    };
    let length = body.len();
    // Whoever asked may have had enough.
    let _ = write!(
        stream,
        "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    );
}
