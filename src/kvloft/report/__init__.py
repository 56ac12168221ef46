"""Results as pictures: charts for papers, and one page that holds everything."""
