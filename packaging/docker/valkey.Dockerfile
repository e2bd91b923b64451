# Valkey with the module, and the command dlock. From a clone:
#
#     docker build -f packaging/docker/valkey.Dockerfile -t dlock-valkey .
#
# Both stages are of the same Debian: a module does not load with an older C library than it was built with.
FROM rust:1-bookworm AS build
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends libclang-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /dlock
COPY . .
RUN cargo build --release --locked -p dlock-module -p dlock

FROM valkey/valkey:8.0-bookworm
COPY --from=build /dlock/target/release/libdlock.so /usr/lib/redis/modules/libdlock.so
COPY --from=build /dlock/target/release/dlock /usr/local/bin/dlock
COPY packaging/docker/server.conf /etc/dlock/server.conf
# Does not use `dlock status`: a server in its grace period grants no new lock, but is healthy and must not be replaced.
HEALTHCHECK --interval=5s --timeout=2s CMD ["valkey-cli", "-e", "DLOCK.PTTL", "health", "check"]
CMD ["valkey-server", "/etc/dlock/server.conf"]
