package arena

import (
	"runtime"
	"testing"
	"weak"

	"github.com/stretchr/testify/require"
)

// TestLargeBuffersAreNotKept: a scope's small buffers are used again, its large ones are left to the garbage collector.
func TestLargeBuffersAreNotKept(t *testing.T) {
	a := New()
	defer a.Close(nil)
	mark := a.Mark()
	small, big := a.Get(large), a.Get(large+1)
	first, dropped := &small[0], weak.Make(&big[0])
	require.Nil(t, a.Own(big))
	require.NotNil(t, a.Own(small))
	runtime.GC()
	require.Nil(t, dropped.Value()) // before the scope ends
	a.Release(mark, nil, nil)
	require.Same(t, first, &a.Get(large)[0])
}

// TestGarbageIsBounded: large buffers that nobody reads any more are collected before more than garbage numbers
// of them exist.
func TestGarbageIsBounded(t *testing.T) {
	a := New()
	defer a.Close(nil)
	dropped := weak.Make(&a.Get(large + 1)[0])
	for range garbage / large {
		a.Get(large + 1)
	}
	require.Nil(t, dropped.Value())
}
