// Package locker makes a lock of dlock a [sync.Locker], for code that takes one. Where you can, use the client itself:
// a sync.Locker cannot report that a lock was lost.
package locker

import (
	"context"
	"errors"
	"sync"

	dlock "github.com/dlock/dlock/clients/go"
)

// A Locker is a lock of dlock as a sync.Locker. Its methods panic with the error if the lock cannot be acquired, or was
// lost before the unlock: code that takes a sync.Locker has no other way to learn of it.
type Locker struct {
	client *dlock.Client
	key    string
	opts   []dlock.Option
	ctx    context.Context
	// local excludes the goroutines of this process from each other, and guards hold.
	local sync.Mutex
	hold  *dlock.Hold
}

var _ sync.Locker = (*Locker)(nil)

// New returns a Locker for the lock with this name. A wait in Lock ends with a panic when ctx is done.
func New(ctx context.Context, client *dlock.Client, key string, opts ...dlock.Option) *Locker {
	return &Locker{client: client, key: key, opts: opts, ctx: ctx}
}

// Lock waits until the lock is granted.
func (l *Locker) Lock() {
	l.local.Lock()
	hold, err := l.client.Acquire(l.ctx, l.key, l.opts...)
	if err != nil {
		l.local.Unlock()
		panic(err)
	}
	l.hold = hold
}

// TryLock acquires the lock if no client holds or waits for it.
func (l *Locker) TryLock() bool {
	if !l.local.TryLock() {
		return false
	}
	hold, err := l.client.TryAcquire(l.ctx, l.key, l.opts...)
	if err != nil {
		l.local.Unlock()
		return false
	}
	l.hold = hold
	return true
}

// Err returns an error if the lock is not held or was lost. Only the goroutine that has locked it may call Err.
func (l *Locker) Err() error {
	if l.hold == nil {
		return dlock.ErrReleased
	}
	return l.hold.Err()
}

// Unlock releases the lock. It panics if the lock is not held, or was lost before.
func (l *Locker) Unlock() {
	hold := l.hold
	if hold == nil {
		panic("locker: unlock of an unlocked Locker")
	}
	l.hold = nil
	err := hold.Release(l.ctx)
	l.local.Unlock()
	// A release without an answer continues in the background.
	if errors.Is(err, dlock.ErrLost) {
		panic(err)
	}
}
