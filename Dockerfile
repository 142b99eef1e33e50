# alineod as an image. The daemon runs in a container and starts its sandboxes
# as siblings on the host's engine, so two things must be handed to it:
#
#   - the engine's socket: -v /var/run/docker.sock:/var/run/docker.sock
#   - the state directory, AT THE SAME PATH inside and outside:
#       -v /var/lib/alineod:/var/lib/alineod
#     The daemon has the engine mount files of it into sandboxes, and the engine
#     knows only the host's paths. Under another path the sandboxes would get
#     empty directories, so the daemon refuses to start.
#
# A named volume has no path of that kind: use a directory. See
# deploy/compose.yaml for the whole of it.

FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
# The build context has no .git: who builds a release says its version.
ARG VERSION=dev
RUN make build VERSION="$VERSION" GOFLAGS=-trimpath
RUN install -d -m 1777 /out/tmp

FROM scratch
COPY --from=build /out/ /
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /src/bin/alineod /usr/local/bin/alineod
ENV PATH=/usr/local/bin \
    ALINEOD_STATE_DIR=/var/lib/alineod \
    ALINEOD_RUNTIME=docker
# The local runtime is of no use in an image without a shell; without the line
# above a missing engine would be noticed only at the first agent.

# `health` asks whether the daemon answers, not whether every agent is back:
# a container restarted for being busy with recovery would never finish it.
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=4 \
    CMD ["/usr/local/bin/alineod", "health"]

# SIGTERM ends the daemon and leaves every sandbox at work.
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/local/bin/alineod", "serve"]
