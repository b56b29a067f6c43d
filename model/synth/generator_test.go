package synth

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/convert/safetensors"
	"dsmoe/model/tensor"
	"dsmoe/model/tensor/tensortest"
)

// TestDrawsAreMT19937 holds the check value that the C++ standard gives for
// std::mt19937: with seed 5489, draw 10000. Draw 1 is widely published.
func TestDrawsAreMT19937(t *testing.T) {
	g := newMT19937(5489)
	assert.EqualValues(t, 3499211612, g.draw())
	g.skip(9998)
	assert.EqualValues(t, 4123659995, g.draw())
	assert.Equal(t, newMT19937(7), newMT19937(7+3<<32), "the high half of the seed does not count")
}

func TestGeneratorSkipsWhatItWouldDraw(t *testing.T) {
	for _, before := range []int{0, 1, 623, 624, 625} {
		for _, n := range []int64{0, 1, 622, 623, 624, 625, 1248, 5000} {
			skipped, drawn := newMT19937(1), newMT19937(1)
			for range before {
				skipped.draw()
			}
			skipped.skip(n)
			for range int64(before) + n {
				drawn.draw()
			}
			assert.Equal(t, drawn.draw(), skipped.draw(), "%d, then %d", before, n)
		}
	}
}

// torchInit is fixtures/torch-init/README.json.
type torchInit struct {
	Tensors map[string]string `json:"tensors"` // "seed 0 shape [16, 64]": "sha256 of …: HEX"
}

// kaiming draws a weight as MoEGate.reset_parameters does after torch.manual_seed.
func kaiming(t *testing.T, seed uint64, shape ...int) tensor.Tensor {
	t.Helper()
	values := make([]float32, shape[0]*shape[1])
	newMT19937(seed).kaimingUniform(values, shape[1])
	return tensortest.New(t, tensor.F32, shape, values)
}

// TestKaimingUniformIsTorch: every bit of the weights that torch drew.
func TestKaimingUniformIsTorch(t *testing.T) {
	dir := filepath.Join("..", "..", "fixtures", "torch-init")
	text, err := os.ReadFile(filepath.Join(dir, "README.json"))
	require.NoError(t, err)
	var want torchInit
	require.NoError(t, json.Unmarshal(text, &want))
	require.Len(t, want.Tensors, 3)
	for name, sum := range want.Tensors {
		t.Run(name, func(t *testing.T) {
			var seed uint64
			var rows, cols int
			_, err := fmt.Sscanf(name, "seed %d shape [%d, %d]", &seed, &rows, &cols)
			require.NoError(t, err)
			hash := sha256.Sum256(kaiming(t, seed, rows, cols).Data)
			assert.Equal(t, "sha256 of the little-endian float32 bytes: "+hex.EncodeToString(hash[:]), sum)
		})
	}

	f, err := safetensors.Open(filepath.Join(dir, "kaiming_uniform.safetensors"))
	require.NoError(t, err)
	defer f.Close()
	for name, got := range map[string]tensor.Tensor{"seed0": kaiming(t, 0, 16, 64), "seed1": kaiming(t, 1, 5, 7)} {
		w, err := f.Tensor(name)
		require.NoError(t, err)
		assert.Equal(t, w, got, name)
	}
}

// TestKaimingUniformInParts: a weight may be filled piece by piece.
func TestKaimingUniformInParts(t *testing.T) {
	whole, parts := make([]float32, 1500), make([]float32, 1500)
	newMT19937(3).kaimingUniform(whole, 50)
	g := newMT19937(3)
	for _, cut := range [][2]int{{0, 1}, {1, 700}, {700, 700}, {700, 1500}} {
		g.kaimingUniform(parts[cut[0]:cut[1]], 50)
	}
	assert.Equal(t, whole, parts)
}

func BenchmarkKaimingUniform(b *testing.B) {
	g, dst := newMT19937(0), make([]float32, 1<<14)
	for b.Loop() {
		g.kaimingUniform(dst, 2048)
	}
	b.ReportMetric(float64(len(dst))*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mvalues/s")
}
