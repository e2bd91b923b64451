// Package dlock locks on a Redis or Valkey server with the module dlock, over go-redis.
//
// A lock is acquired by [Client.Acquire], which waits in a fair queue on the server, by [Client.TryAcquire], or for the
// time of a function by [Client.Do]:
//
//	locks := dlock.New(redis.NewClient(&redis.Options{Addr: "localhost:6379"}))
//	err := locks.Do(ctx, "invoice:42", func(ctx context.Context, h *dlock.Hold) error {
//		return bill(ctx, 42, h.Fence())
//	})
//
// # Holds
//
// A [Hold] has a lease, which the client renews until the release: if the process dies, the lock is free after the
// lease. A hold can be lost; then [Hold.Context] is cancelled, with the reason as its cause. If the server was away for
// too long, that is a tenth of the lease before another client can hold the lock, and a hundredth with [NoRenew]. The
// client counts a lease from before the request was sent, on a clock that does not jump and, on Linux, continues while
// the machine is suspended.
//
// In two cases the next client can hold the lock before this one notices: an operator has ended the hold
// ([Client.Break], a deleted key), which is noticed up to 0.2 s later, or the process was stopped past its lease. So
// let [Hold.Fence] protect your writes: a store that has seen a greater fence refuses the write ([Client.Fenced],
// [Hold.Guard], or a database).
//
// # Errors
//
// The errors are for [errors.Is]: [ErrNotAcquired], [ErrLost], [ErrDeadlock], [ErrGrace], [ErrNoModule] and others. Some
// have types with details for [errors.As]: a [NotAcquiredError] says who holds the lock. Errors of the network and of the
// server are wrapped, so errors.Is and errors.As find those of go-redis, too.
//
// ErrDeadlock needs an [Owner]. In a cluster, each server finds the cycles among its own locks: a cycle through two
// masters hangs, so use a hash tag, or a deadline.
//
// # Contexts
//
// A wait ends when its context is done, and leaves nothing on the server. A request that is under way when the context
// is done ends as all requests of go-redis do: by its answer or its ReadTimeout, or at the deadline of the context with
// ContextTimeoutEnabled. A release is sent even if the context is done.
//
// # What runs in the background
//
// A client has no goroutine and no connection of its own while no lock is held, waited for or owed a release. The waits
// of a client share one subscription, which ends soon after the last one. All holds that are older than 0.1 s share two
// connections to each server, over which the server reports that a lock has changed (CLIENT TRACKING), so a loss is
// known within 0.2 s. A loss is known later after a FLUSHALL within the first second of these connections (0.8 s). It
// is known at the next renewal after a SWAPDB, if the user lacks a right to CLIENT TRACKING, and if New got another
// type than *redis.Client and *redis.ClusterClient, such as one that embeds them.
//
// One timer sends all renewals, and those that are due together form a pipeline. A request without an answer may still
// be executed later. go-redis never sends a request of this package twice, whatever its MaxRetries says; the client
// releases a hold or position of a late request. Call [Client.Close] before the process exits, to wait for such
// releases.
//
// # Servers
//
// The client works with one server, with Sentinel and with Redis Cluster. It follows redirects and failovers: a hold
// continues at the new master if its data has the hold, and a wait joins the tail of the queue there. Behind Sentinel,
// go-redis closes its connections to the old master when the sentinels announce another one, so requests go there at
// once. But it leaves subscriptions at the old master after a planned failover, until the sentinels demote it about 10 s
// later: meanwhile a wait is granted at its next request, up to 3.3 s late, and the next renewal notices a loss. A list
// of independent servers (a quorum, a [redis.Ring]) is refused; the clients for Rust, Python and Node have it.
//
// If an address moves to a new master, connections of the pool may still lead to the former one. So a request that a
// replica refuses (READONLY) is sent again at once, as often as the pool has idle connections, and once over a new one.
package dlock
