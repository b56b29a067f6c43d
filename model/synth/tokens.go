package synth

// Tokens returns n token ids below vocab < 2^32, each a draw mod vocab, as torch draws them on
// the CPU:
//
//	torch.randint(vocab, (n,), generator=torch.Generator().manual_seed(seed))
func Tokens(seed uint64, n, vocab int) []int {
	g, ids := newMT19937(seed), make([]int, n)
	for i := range ids {
		ids[i] = int(uint64(g.draw()) % uint64(vocab))
	}
	return ids
}
