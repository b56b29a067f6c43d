package operation

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model/tensor"
)

// TestNarrow: what was widened comes back to the bit, denormals too, and what was
// not is refused, by Apply and by Prove.
func TestNarrow(t *testing.T) {
	for _, to := range []tensor.DType{tensor.BF16, tensor.F16} {
		n, err := NewNarrow(to)
		require.NoError(t, err)
		var want []byte
		for i := range 1 << 16 {
			want = binary.LittleEndian.AppendUint16(want, uint16(i))
		}
		widen, err := NewCast(to, tensor.F32)
		require.NoError(t, err)
		wide, got := make([]byte, 2*len(want)), make([]byte, len(want))
		var lost tensor.Loss
		require.NoError(t, widen.Apply(wide, Input{Data: want}, &lost))
		for i := range 1 << 16 {
			v := math.Float32frombits(binary.LittleEndian.Uint32(wide[4*i:]))
			one := Input{Data: wide[4*i:][:4]}
			if v != v && n.Apply(got[2*i:][:2], one, &lost) != nil {
				continue // a cast makes NaNs quiet: what is not comes back as an error, not as another
			}
			if err := n.Apply(got[2*i:][:2], one, &lost); err != nil || !bytes.Equal(want[2*i:][:2], got[2*i:][:2]) {
				require.NoError(t, err)
				require.Equal(t, want[2*i:][:2], got[2*i:][:2])
			}
			if err := n.Prove(want[2*i:][:2], one); err != nil {
				require.NoError(t, err)
			}
		}
		third := binary.LittleEndian.AppendUint32(nil, math.Float32bits(1.0/3))
		require.ErrorContains(t, n.Apply(make([]byte, 2), Input{Data: third}, &lost), "was not widened from "+to.String()+", as the file says: element 0 reads")
		require.Error(t, n.Prove([]byte{0, 0}, Input{Data: third}))
	}
	_, err := NewNarrow(tensor.I8)
	require.ErrorContains(t, err, "nothing can be cast to dtype I8")
}
