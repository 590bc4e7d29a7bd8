//! Traces on their way to a collector: OTLP over HTTP, in batches, from a thread of their own.
//!
//! At most 2048 spans wait; of more the newest are dropped. A collector that refuses or hangs holds up
//! that thread and nothing else.

use std::{
    collections::BTreeMap,
    error::Error as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::{HeaderMap, HeaderName, HeaderValue, header::CONTENT_TYPE};
use http_body_util::{BodyExt as _, Limited};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::{
    Resource,
    trace::{Sampler, SdkTracerProvider},
};
use tokio::runtime::Handle;

use super::TelemetryError;
use crate::config::TelemetryConfig;

/// Time for one batch, also for a collector that accepts a connection and says nothing.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The most of a collector's answer that is read.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// Where the standard variables name a collector, and whether the path belongs to it already.
const ENDPOINTS: [(&str, bool); 2] = [
    ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", true),
    ("OTEL_EXPORTER_OTLP_ENDPOINT", false),
];

/// What makes spans and sends them, if the configuration or the standard variables name a collector.
///
/// # Errors
///
/// [`TelemetryError::Collector`].
pub(super) fn provider(
    config: &TelemetryConfig,
    environment: &BTreeMap<String, String>,
    runtime: &Handle,
) -> Result<Option<SdkTracerProvider>, TelemetryError> {
    let set = |name: &str| environment.get(name).filter(|value| !value.is_empty());
    if set("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return Ok(None);
    }
    let Some((name, endpoint)) = endpoint(config, environment) else {
        return Ok(None);
    };
    let wrong = |problem: String| TelemetryError::Collector { name, problem };
    let is_http = endpoint.starts_with("http://") || endpoint.starts_with("https://");
    if !is_http || endpoint.parse::<http::Uri>().is_err() {
        let problem = "this is no address of a collector: write one such as http://127.0.0.1:4318";
        return Err(wrong(problem.to_owned()));
    }
    if set("OTEL_EXPORTER_OTLP_PROTOCOL").is_some_and(|protocol| protocol == "grpc") {
        return Err(TelemetryError::Collector {
            name: "OTEL_EXPORTER_OTLP_PROTOCOL",
            problem: "spans are sent as http/protobuf only: write that, and the collector's port for HTTP, 4318"
                .to_owned(),
        });
    }
    // The library's own message may show the address and the headers.
    let unusable = |_| wrong("this collector, or the headers for it, cannot be used".to_owned());
    let sender = Sender::new(runtime.clone()).map_err(|error| wrong(error.to_string()))?;
    let sender = sender.with_headers(&config.otlp_headers).ok_or_else(|| {
        let problem = "one of these is no header: a name, and a value without line ends".to_owned();
        TelemetryError::Collector {
            name: "telemetry.otlp_headers",
            problem,
        }
    })?;
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(sender)
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(endpoint)
        .with_timeout(TIMEOUT)
        .build()
        .map_err(unusable)?;
    let named = config.service_name.clone();
    let named = named.or_else(|| set("OTEL_SERVICE_NAME").cloned());
    let resource = Resource::builder()
        .with_service_name(named.unwrap_or_else(|| env!("CARGO_PKG_NAME").to_owned()))
        .build();
    let share = f64::from(config.sample_percent) / 100.0;
    // A caller that has decided knows the whole trace.
    let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(share)));
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_sampler(sampler)
        .with_resource(resource)
        .build();
    Ok(Some(provider))
}

fn endpoint(
    config: &TelemetryConfig,
    environment: &BTreeMap<String, String>,
) -> Option<(&'static str, String)> {
    let whole = |base: &str| format!("{}/v1/traces", base.trim_end_matches('/'));
    if let Some(base) = &config.otlp_endpoint {
        return Some(("telemetry.otlp_endpoint", whole(base)));
    }
    ENDPOINTS.into_iter().find_map(|(name, is_whole)| {
        let value = environment.get(name).filter(|value| !value.is_empty())?;
        let endpoint = if is_whole {
            value.clone()
        } else {
            whole(value)
        };
        Some((name, endpoint))
    })
}

/// Sends batches on the server's runtime, with the client that reaches upstreams.
#[derive(Debug)]
struct Sender {
    client: reqwest::Client,
    runtime: Handle,
    /// The configured ones. The library would put those of the standard variables over them, and send
    /// one collector's key to another.
    headers: HeaderMap,
    is_failing: Arc<AtomicBool>,
}

impl Sender {
    fn new(runtime: Handle) -> Result<Self, reqwest::Error> {
        let client = reqwest::Client::builder()
            // What is sent goes to whom the operator named, and nowhere else.
            .redirect(reqwest::redirect::Policy::none())
            .timeout(TIMEOUT)
            .build()?;
        Ok(Self {
            client,
            runtime,
            headers: HeaderMap::new(),
            is_failing: Arc::default(),
        })
    }

    /// `None` if one of them is no header.
    fn with_headers(mut self, headers: &BTreeMap<String, String>) -> Option<Self> {
        for (name, value) in headers {
            let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
            self.headers
                .insert(name, HeaderValue::from_str(value).ok()?);
        }
        Some(self)
    }

    /// What the library made, with the configured headers in place of those of the variables.
    fn dressed(&self, mut request: Request<Bytes>) -> Request<Bytes> {
        if !self.headers.is_empty() {
            let kind = request.headers_mut().remove(CONTENT_TYPE);
            *request.headers_mut() = self.headers.clone();
            request
                .headers_mut()
                .extend(kind.map(|kind| (CONTENT_TYPE, kind)));
        }
        request
    }

    /// Says it once when spans begin to be lost, and once when they no longer are.
    fn tell(&self, failed: Option<&str>) {
        let was_failing = self.is_failing.swap(failed.is_some(), Ordering::Relaxed);
        match failed {
            Some(reason) if !was_failing => {
                tracing::warn!(reason, "spans do not reach the collector, and are lost");
            }
            None if was_failing => tracing::warn!("spans reach the collector again"),
            _ => {}
        }
    }
}

#[async_trait::async_trait]
impl HttpClient for Sender {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.client.clone();
        let request = self.dressed(request);
        let sent = self.runtime.spawn(send(client, request)).await;
        match sent {
            Ok(Ok(response)) => {
                let status = response.status();
                let refused = (!status.is_success()).then(|| format!("it answered HTTP {status}"));
                self.tell(refused.as_deref());
                Ok(response)
            }
            Ok(Err(reason)) => {
                self.tell(Some(&reason));
                Err(reason.into())
            }
            // The server ends.
            Err(error) => Err(error.into()),
        }
    }
}

async fn send(client: reqwest::Client, request: Request<Bytes>) -> Result<Response<Bytes>, String> {
    let request = reqwest::Request::try_from(request).map_err(|error| root_cause(&error))?;
    let response = client.execute(request).await;
    let response = response.map_err(|error| root_cause(&error))?;
    let (parts, body) = http::Response::<reqwest::Body>::from(response).into_parts();
    let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await;
    let body = body.map_err(|_| "its answer broke off, or is too long".to_owned())?;
    Ok(Response::from_parts(parts, body.to_bytes()))
}

/// The innermost reason: the outer ones repeat the address, which may hold a password.
fn root_cause(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return format!("it did not answer within {} s", TIMEOUT.as_secs());
    }
    let mut reason = None;
    let mut source = error.source();
    while let Some(inner) = source {
        reason = Some(inner.to_string());
        source = inner.source();
    }
    reason.unwrap_or_else(|| "it did not answer".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LogFormat;

    fn config(endpoint: Option<&str>) -> TelemetryConfig {
        TelemetryConfig {
            log_format: LogFormat::Text,
            otlp_endpoint: endpoint.map(str::to_owned),
            otlp_headers: BTreeMap::new(),
            service_name: None,
            sample_percent: 100,
        }
    }

    fn found(config: &TelemetryConfig, environment: &BTreeMap<String, String>) -> Option<String> {
        endpoint(config, environment).map(|(_, endpoint)| endpoint)
    }

    fn variables(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let pairs = pairs.iter();
        pairs
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn the_configuration_goes_before_the_standard_variables() {
        let standard = variables(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://b:4318/")]);
        assert_eq!(found(&config(None), &variables(&[])), None);
        let own = config(Some("http://a:4318"));
        assert_eq!(found(&own, &standard).unwrap(), "http://a:4318/v1/traces");
        assert_eq!(
            found(&config(None), &standard).unwrap(),
            "http://b:4318/v1/traces"
        );
        let traces = variables(&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://c/in")]);
        assert_eq!(found(&config(None), &traces).unwrap(), "http://c/in");
    }

    #[tokio::test]
    async fn configured_headers_take_the_place_of_those_of_the_variables() {
        let own = BTreeMap::from([("x-key".to_owned(), "own".to_owned())]);
        let made = || {
            Request::post("http://a/")
                .header(CONTENT_TYPE, "application/x-protobuf")
                .header("x-key", "of another collector")
                .header("x-other", "of another collector")
                .body(Bytes::new())
                .unwrap()
        };
        let sender = || Sender::new(Handle::current()).unwrap();
        let sent = sender().with_headers(&own).unwrap().dressed(made());
        assert_eq!(sent.headers()["x-key"], "own");
        assert_eq!(sent.headers()[CONTENT_TYPE], "application/x-protobuf");
        assert!(!sent.headers().contains_key("x-other"));
        assert_eq!(sender().dressed(made()).headers().len(), 3);
        let broken = BTreeMap::from([("x-key".to_owned(), "a\nb".to_owned())]);
        assert!(sender().with_headers(&broken).is_none());
    }

    #[tokio::test]
    async fn an_address_that_is_none_is_refused_and_not_shown() {
        let runtime = Handle::current();
        for wrong in ["collector:4318", "grpc://secret@a", "http://secret word"] {
            let refused = provider(&config(Some(wrong)), &variables(&[]), &runtime).unwrap_err();
            let text = refused.to_string();
            assert!(text.starts_with("telemetry.otlp_endpoint: "), "{text}");
            assert!(
                !text.contains("secret") && text.contains("127.0.0.1:4318"),
                "{text}"
            );
        }
        let grpc = variables(&[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]);
        let refused = provider(&config(Some("http://a:4318")), &grpc, &runtime).unwrap_err();
        assert!(refused.to_string().contains("http/protobuf"), "{refused}");
        let disabled = variables(&[("OTEL_SDK_DISABLED", "true")]);
        let none = provider(&config(Some("http://a:4318")), &disabled, &runtime).unwrap();
        assert!(none.is_none());
    }
}
