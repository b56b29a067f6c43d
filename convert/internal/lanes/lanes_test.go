package lanes

import (
	"bytes"
	"crypto/sha256"
	"encoding"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// random returns n bytes of a sequence that seed decides.
func random(seed uint64, n int) []byte {
	var key [32]byte
	key[0], key[1] = byte(seed), byte(seed>>8)
	b := make([]byte, n)
	_, _ = rand.NewChaCha8(key).Read(b)
	return b
}

// state returns the state of crypto/sha256 after b.
func state(t *testing.T, b []byte) []byte {
	h := sha256.New()
	h.Write(b)
	s, err := h.(encoding.BinaryMarshaler).MarshalBinary()
	require.NoError(t, err)
	return s
}

func TestDigest(t *testing.T) {
	data := random(1, 300)
	for n := range len(data) + 1 {
		want := sha256.Sum256(data[:n])
		for cut := range n + 1 {
			var d Digest
			d.Write(data[:cut])
			middle := d
			d.Write(data[cut:n])
			require.Equal(t, want, d.Sum(), "%d bytes, cut at %d", n, cut)
			require.Equal(t, want, d.Sum(), "Sum changed the digest")
			require.Equal(t, sha256.Sum256(data[:cut]), middle.Sum(), "Write changed a copy")
		}
	}
}

// TestMarshal carries states from crypto/sha256 to a Digest and back.
func TestMarshal(t *testing.T) {
	data := random(2, 1000)
	for n := range len(data) + 1 {
		var d, back Digest
		d.Write(data[:n])
		got, err := d.MarshalBinary()
		require.NoError(t, err)
		require.Equal(t, state(t, data[:n]), got, "%d bytes", n)

		require.NoError(t, back.UnmarshalBinary(got))
		require.Equal(t, d.Sum(), back.Sum())
		back.Write(data[n:])
		require.Equal(t, sha256.Sum256(data), back.Sum(), "%d bytes first", n)

		h := sha256.New()
		require.NoError(t, h.(encoding.BinaryUnmarshaler).UnmarshalBinary(got))
		h.Write(data[n:])
		want := sha256.Sum256(data)
		require.Equal(t, want[:], h.Sum(nil))
	}
}

func TestUnmarshalRefuses(t *testing.T) {
	good := state(t, []byte("abc"))
	var d Digest
	require.ErrorContains(t, d.UnmarshalBinary(nil), "identifier")
	require.ErrorContains(t, d.UnmarshalBinary([]byte("sha\x02")), "identifier")
	require.ErrorContains(t, d.UnmarshalBinary(good[:len(good)-1]), "size")
	require.ErrorContains(t, d.UnmarshalBinary(append(good, 0)), "size")
	require.Equal(t, Digest{}, d)
}

// TestBlocks holds the assembly against crypto/sha256 at all alignments.
func TestBlocks(t *testing.T) {
	for _, im := range supported() {
		if im.blocks == nil {
			continue
		}
		t.Run(im.name, func(t *testing.T) {
			for shift := range 65 {
				n := shift % 7
				var h, before [8][16]uint32
				var p [16]*byte
				var streams [16][]byte
				for lane := range 16 {
					for i := range h {
						h[i][lane] = initial[i]
					}
					streams[lane] = random(uint64(shift*16+lane), n*64+65+16)[shift+lane%2*lane:]
					p[lane] = &streams[lane][0]
				}
				before = h
				im.blocks(&h, &p, n)
				for lane := range 16 {
					var d Digest
					if lane < im.lanes {
						require.NoError(t, d.UnmarshalBinary(state(t, streams[lane][:n*64])))
					}
					for i := range h {
						require.Equal(t, d.h[i]^initial[i], h[i][lane], "%d blocks, shift %d, word %d of lane %d", n, shift, i, lane)
					}
				}
				if n == 0 {
					require.Equal(t, before, h)
				}
			}
		})
	}
}

// TestHash fills any number of lanes with streams of any length.
func TestHash(t *testing.T) {
	for _, im := range supported() {
		for n := 1; n <= im.lanes; n++ {
			r := rand.New(rand.NewPCG(3, uint64(n)))
			digests := make([]Digest, n)
			var set []*job
			least := 1 << 30
			for i := range n {
				b := random(uint64(i), 64+r.IntN(20_000))
				set = append(set, &job{d: &digests[i], b: b})
				least = min(least, len(b)/64*64)
			}
			im.hash(set)
			for i, j := range set {
				all := random(uint64(i), least+len(j.b))
				require.Equal(t, sha256.Sum256(all[:least]), digests[i].Sum(), "%s, lane %d of %d", im.name, i, n)
				require.Equal(t, all[least:], j.b)
			}
		}
	}
}

// each runs a test with every implementation and several numbers of processors.
func each(t *testing.T, test func(t *testing.T, p *Pool)) {
	for _, im := range supported() {
		for _, procs := range []int{1, 2, 8} {
			t.Run(fmt.Sprintf("%s/procs=%d", im.name, procs), func(t *testing.T) {
				defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
				p := newPool(im, procs)
				test(t, p)
				require.Zero(t, p.entered)
				require.Zero(t, p.inside)
				require.Zero(t, p.leading)
				require.Empty(t, p.queue)
			})
		}
	}
}

// TestPool hashes random pieces of random lengths in goroutines that begin, wait
// and end at any time.
func TestPool(t *testing.T) {
	data := random(4, 1<<18)
	each(t, func(t *testing.T, p *Pool) {
		var all sync.WaitGroup
		for i := range 40 {
			all.Go(func() {
				r := rand.New(rand.NewPCG(5, uint64(i)))
				pause := func() {
					if r.IntN(4) == 0 {
						time.Sleep(time.Duration(r.IntN(500)) * time.Microsecond)
					}
				}
				pause()
				for range 1 + r.IntN(2) {
					p.Enter()
					for range r.IntN(4) {
						stream(t, p, r, data, pause)
					}
					p.Leave()
					pause()
				}
			})
		}
		all.Wait()
	})
}

// stream hashes some of data through p in pieces.
func stream(t *testing.T, p *Pool, r *rand.Rand, data []byte, pause func()) {
	data = data[r.IntN(100):][:r.IntN(len(data)>>r.IntN(8)-100)]
	var d Digest
	for left := data; len(left) > 0; {
		n := min(len(left), r.IntN(1<<r.IntN(19)+1)) // often 0
		buffer := bytes.Clone(left[:n])
		p.Write(&d, buffer)
		clear(buffer) // it is ours again
		left = left[n:]
		pause()
	}
	if got := d.Sum(); got != sha256.Sum256(data) {
		t.Errorf("%d bytes: %x", len(data), got)
	}
}

// TestTogether has a number of goroutines in step, so that each number of lanes
// comes to be filled.
func TestTogether(t *testing.T) {
	data := random(6, 1<<15)
	each(t, func(t *testing.T, p *Pool) {
		for n := 1; n <= 35; n++ {
			var all sync.WaitGroup
			for range n {
				p.Enter()
			}
			for i := range n {
				all.Go(func() {
					defer p.Leave()
					var d Digest
					for b := data[i:]; len(b) > 0; b = b[min(1<<13, len(b)):] {
						p.Write(&d, b[:min(1<<13, len(b))])
					}
					if d.Sum() != sha256.Sum256(data[i:]) {
						t.Errorf("stream %d of %d", i, n)
					}
				})
			}
			all.Wait()
		}
	})
}

// TestAlone has nobody to wait for, entered or not.
func TestAlone(t *testing.T) {
	data := random(7, 1<<16)
	each(t, func(t *testing.T, p *Pool) {
		var d, e Digest
		p.Write(&d, data)
		require.Equal(t, sha256.Sum256(data), d.Sum())
		p.Enter()
		defer p.Leave()
		p.Write(&e, data)
		require.Equal(t, sha256.Sum256(data), e.Sum())
	})
}

// TestLeave has the only goroutine that was waited for leave without a Write.
func TestLeave(t *testing.T) {
	data := random(8, 1<<16)
	each(t, func(t *testing.T, p *Pool) {
		p.Enter()
		var all sync.WaitGroup
		for range 5 {
			p.Enter()
			all.Go(func() {
				defer p.Leave()
				var d Digest
				p.Write(&d, data)
				if d.Sum() != sha256.Sum256(data) {
					t.Error("wrong sum")
				}
			})
		}
		time.Sleep(5 * time.Millisecond)
		p.Leave()
		all.Wait()
	})
}

// TestBest says what is used, for TestFallback.
func TestBest(t *testing.T) { t.Logf("best: %s", best.name) }

// TestFallback hides the vector registers.
func TestFallback(t *testing.T) {
	run := func(off string) string {
		cmd := exec.Command(os.Args[0], "-test.run=^TestBest$", "-test.v")
		cmd.Env = append(os.Environ(), "GODEBUG="+off)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	require.Contains(t, run("cpu.avx2=off"), "best: standard")
	require.Contains(t, run("cpu.avx512f=off"), "best: "+map[bool]string{true: "avx2", false: "standard"}[narrow()])
}

// narrow reports whether eight lanes are the best without AVX-512.
func narrow() bool {
	for _, im := range supported() {
		if im.lanes <= 8 {
			return im.lanes == 8
		}
	}
	return false
}

// FuzzWrite hashes two streams of any content, in any pieces, beside one another.
func FuzzWrite(f *testing.F) {
	f.Add([]byte{}, []byte("abc"), uint64(0))
	f.Add(random(9, 100), random(10, 10_000), uint64(1))
	f.Add(random(11, 8192), random(12, 8192+63), uint64(2))
	f.Fuzz(func(t *testing.T, a, b []byte, seed uint64) {
		a, b = bytes.Repeat(a, 1+int(seed%50)), bytes.Repeat(b, 1+int(seed/64%50))
		for _, im := range supported() {
			p := newPool(im, runtime.GOMAXPROCS(0))
			var all sync.WaitGroup
			for i, data := range [][]byte{a, b, a, b, b} {
				p.Enter()
				all.Go(func() {
					defer p.Leave()
					r := rand.New(rand.NewPCG(seed, uint64(i)))
					var d Digest
					for left := data; len(left) > 0; {
						n := r.IntN(min(len(left), 20_000) + 1)
						p.Write(&d, left[:n])
						left = left[n:]
						s, err := d.MarshalBinary()
						if d = (Digest{}); err != nil || d.UnmarshalBinary(s) != nil {
							t.Error("the state did not come back")
						}
					}
					if d.Sum() != sha256.Sum256(data) {
						t.Errorf("%s: wrong sum of %d bytes", im.name, len(data))
					}
				})
			}
			all.Wait()
		}
	})
}

// BenchmarkWrite hashes with each implementation what does not fit the caches.
// "standard" is crypto/sha256.
func BenchmarkWrite(b *testing.B) {
	data := random(13, 64<<20)
	for _, im := range supported() {
		for _, goroutines := range []int{1, 16, 32} {
			for _, piece := range []int{256 << 10, 1 << 20} {
				b.Run(fmt.Sprintf("%s/goroutines=%d/piece=%dKiB", im.name, goroutines, piece>>10), func(b *testing.B) {
					b.SetBytes(int64(goroutines * piece))
					p := newPool(im, runtime.GOMAXPROCS(0))
					var all sync.WaitGroup
					for i := range goroutines {
						p.Enter()
						all.Go(func() {
							defer p.Leave()
							var d Digest
							for n := range b.N {
								at := (n*goroutines + i) * piece % len(data)
								p.Write(&d, data[at:at+piece])
							}
						})
					}
					all.Wait()
				})
			}
		}
	}
}

// BenchmarkHash shows, beside BenchmarkWrite with one goroutine, from how many
// streams on the lanes are worth it.
func BenchmarkHash(b *testing.B) {
	data := random(14, 1<<20)
	for _, im := range supported() {
		for n := 1; n <= im.lanes; n++ {
			b.Run(fmt.Sprintf("%s/streams=%d", im.name, n), func(b *testing.B) {
				digests := make([]Digest, n)
				b.SetBytes(int64(n * 64 << 10))
				for range b.N {
					var set []*job
					for i := range digests {
						set = append(set, &job{d: &digests[i], b: data[i*64<<10:][:64<<10]})
					}
					im.hash(set)
				}
			})
		}
	}
}
