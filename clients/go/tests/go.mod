module github.com/dlock/dlock/clients/go/tests

go 1.26

require (
	github.com/dlock/dlock/clients/go v0.0.0
	github.com/redis/go-redis/v9 v9.19.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	go.uber.org/atomic v1.11.0 // indirect
)

replace github.com/dlock/dlock/clients/go => ../
