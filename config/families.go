package config

// init lists the families. An initial value of the variable cannot, since rows of families compare configs by their
// families.
func init() {
	families = []*family{&v1, &v2, &v3, &kimiK2, &glm4MoELite, &axk1, &vl2, &v32, &glmMoEDsa, &v4, &v41,
		&glm4MoE, &dots1, &solarOpen, &hyV3, &minimaxM2, &exaoneMoE, &ernie45MoE}
}
