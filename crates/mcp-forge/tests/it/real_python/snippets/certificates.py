# The default TLS context has certificates to trust.
import ssl

ssl.create_default_context().cert_store_stats()["x509_ca"] > 50
