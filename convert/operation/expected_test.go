package operation

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/model/tensor"
)

// TestTables_every: a block that is large enough for a table has the same proof as by the bounds of each element. Its scales
// give products that are exact, half-way between two numbers, denormal, infinite and NaN.
func TestTables_every(t *testing.T) {
	scales := []float32{1, 0.0010463, 1 + 0x1p-7, 1.5, 0x1.04p-3, 0x1.00ffp-9, 0x1p-120, 0x1.8p-130, 0x1.22p-149, 0x1.fffffep127,
		-0.37, 0, float32(math.Copysign(0, -1)), float32(math.Inf(1)), float32(math.NaN()), 0x1.8p-20}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 30 {
		scales = append(scales, math.Float32frombits(rng.Uint32()&0x7ff<<12|uint32(100+rng.IntN(40))<<23))
	}
	side := encoded(t, scales, tensor.F32)
	codes := make([]byte, 64*64*len(scales))
	for i := range codes {
		codes[i] = byte(i%251*5 + i/251)
	}
	blocks := tensor.Blocks{Rows: 64, Cols: 64 * len(scales), BlockRows: 64, BlockCols: 64}
	in := Input{Data: codes, Sides: [][]byte{side}}
	var tables Tables
	in.Tables = new(Tables)
	for _, to := range []tensor.DType{tensor.BF16, tensor.F16, tensor.F32} {
		d, err := NewDequantise(tensor.F8E4M3, to, tensor.Scaling{Scales: tensor.F32, Blocks: blocks})
		require.NoError(t, err)
		out, _ := apply(t, d, in)
		require.NoError(t, d.Prove(out, in))
		size, b, tabled := int(to.Bytes(1)), boundsOf(to), 0
		p := products{d.Blocks, tensor.Grid{Scales: scales}, 0, 0, tensor.FP8, codes, 0}
		step := 3 * 111
		if configtest.Every(t) {
			step = 111
		}
		for i := 0; i < len(codes); i += step {
			right := string(out[size*i : size*(i+1)])
			block, column, _ := p.run(i)
			tables.row(scales[block:block+1], column, b)
			if tables.same(column, codes[i:i+1], out[size*i:], 1) == 1 {
				tabled++
			}
			for _, change := range []uint32{1, 1<<32 - 1, 1 << (8*size - 1), 0x8001, 0x40} {
				bits := uint32(binary.LittleEndian.Uint16(out[size*i:]))
				if size == 4 {
					bits = binary.LittleEndian.Uint32(out[size*i:])
				}
				copy(out[size*i:size*(i+1)], binary.LittleEndian.AppendUint32(nil, bits+change))
				err, want := d.Prove(out[i/64*64*size:][:64*size], piece(d, codes, side, i/64*64, 64)), b.check(p.exact(i), out, i, productSlack)
				require.Equal(t, want, err == nil, "%s: code %02x, scale %g, %x", to, codes[i], scales[column], bits+change)
				var m *Mismatch
				if !want {
					require.ErrorAs(t, err, &m)
					require.Equal(t, i%64, m.Element)
				}
				copy(out[size*i:], right)
			}
		}
		require.Greater(t, tabled, len(codes)/step*9/10, to)
	}
}
