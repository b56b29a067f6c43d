package operation

import "fmt"

// Mismatch is the first element of a piece that the source does not give.
type Mismatch struct {
	Element int    // its index in the piece
	Got     string // value read
	Want    string // value that the source gives
}

// Error names the element and both values.
func (m *Mismatch) Error() string { return m.Differs(int64(m.Element)) }

// Differs describes the mismatch of the element with this index in the tensor.
func (m *Mismatch) Differs(element int64) string {
	return fmt.Sprintf("element %d reads %s, but the source gives %s", element, m.Got, m.Want)
}

// hexOf prints an element's bits, its highest byte first.
func hexOf(element []byte) string {
	digits := ""
	for _, b := range element {
		digits = fmt.Sprintf("%02x", b) + digits
	}
	return digits
}
