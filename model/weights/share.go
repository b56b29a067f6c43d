package weights

// Share deals things of so many bytes, in their order, out to parts of about as many bytes: it returns each
// thing's part, from 0 on, ascending. A part has at most its share and the largest thing; one may have none.
func Share(bytes []int64, parts int) []int {
	total, before := int64(0), int64(0)
	for _, n := range bytes {
		total += n
	}
	of := make([]int, len(bytes))
	for i, n := range bytes {
		middle := float64(before) + float64(n)/2
		switch at := middle / float64(max(total, 1)) * float64(parts); {
		case at < float64(parts):
			of[i] = int(at)
		default:
			of[i] = parts - 1
		}
		before += n
	}
	return of
}
