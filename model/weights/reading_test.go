package weights

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model/tensor"
)

// TestReading: every byte is read and counted once, whatever the number of workers.
func TestReading(t *testing.T) {
	src := memory{"w": counting(tensor.BF16, 3, 5_000_000)}
	w := &Weight{Info: tensor.Info{Name: "w", DType: tensor.BF16, Shape: []int{3, 5_000_000}}, Stored: "w"}
	for _, workers := range []int{1, 3, 0} {
		done := int64(0)
		r := NewReading(t.Context(), workers, func(bytes, total int64) {
			require.Less(t, done, bytes)
			require.Equal(t, w.Bytes(), total)
			done = bytes
		})
		r.Expect(w.Bytes())
		jobs, elements := 0, make([]int64, 4)
		for at, n := range w.Jobs() {
			i := jobs
			r.Go(func() error {
				for values, err := range r.Numbers(src, w, at, n) {
					require.NoError(t, err)
					require.LessOrEqual(t, len(values), TileElements)
					elements[i] += int64(len(values))
				}
				return nil
			})
			jobs++
		}
		require.NoError(t, r.Wait())
		require.Equal(t, 4, jobs)
		require.EqualValues(t, w.Len(), elements[0]+elements[1]+elements[2]+elements[3])
		require.Equal(t, w.Bytes(), done)
	}
}

// TestReadingFails: errors come in the order of Go, and after the context has ended its cause alone.
func TestReadingFails(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	r := NewReading(ctx, 2, nil)
	for _, name := range []string{"a", "b", "c"} {
		w := &Weight{Info: tensor.Info{Name: name, DType: tensor.F32, Shape: []int{1}}, Stored: name}
		r.Go(func() error {
			_, err := r.All(memory{"b": counting(tensor.F32, 1)}, w, nil)
			return err
		})
	}
	require.EqualError(t, r.Wait(), "tensor a: no such tensor\ntensor c: no such tensor")
	require.NoError(t, r.Wait())
	why := errors.New("why")
	cancel(why)
	r.Go(func() error { panic("not reached") })
	require.Equal(t, why, r.Wait())
}
